"""The site of a command with the user's own values in it: configuration, site files, personal values, placeholders."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from runner.core import paths
from runner.model.request import Request
from runner.model.site import Owned, Site, UserConfig
from runner.planning.personal import Personal, account, expand_placeholders, missing_values, with_scratch
from runner.preparation.site_choice import Say, choose_documents, silent
from runner.sites.loader import GENERIC, Unknown, site_of, unknowns
from runner.sites.user import check_entry, personal_values, read_config


@dataclass(frozen=True)
class UserSite:
    """A site as one user sees it.

    Attributes:
        shipped: as its files describe it, with placeholders.
        site: the same with the user's values in their place.
        account: whom to charge, with the site's suffix; None where the scheduler knows.
        missing: values that the site needs and the user has not given.
        unknowns: keys that the site's files leave unknown.
        file: as a command takes the site: its file, or its name where it is a shipped one.
    """

    shipped: Site
    site: Site
    personal: Personal
    account: str | None
    missing: tuple[Owned, ...]
    unknowns: tuple[Unknown, ...] = ()
    file: str = ""


def read_user_site(
    name: str | None, request: Request, *, for_job: bool, say: Say = silent, keep: bool = True
) -> UserSite:
    """Read the site's files and the user's configuration, each once.

    Args:
        name: a site or a file; None for the one of the configuration, else see ``site_choice``, as of the others.

    Raises:
        UsageError, RefusedError: a file is not right (says file:line and key), or no site can be chosen.
    """
    config = read_config()
    named = name if name is not None else config.site or None
    documents = choose_documents(named, say, for_job=for_job, keep=keep)
    read = with_user_values(site_of(documents), request, config, unknowns(documents))
    return replace(read, file=named if named is not None and named != GENERIC else documents[0].name)


def with_user_values(
    shipped: Site, request: Request, config: UserConfig, unknown_keys: Sequence[Unknown] = ()
) -> UserSite:
    """The site with the user's values: those of the request, else of the configuration, else what the site says of
    everybody's.

    Raises:
        UsageError: the site has a placeholder that does not exist, or the configuration has misspelt the site's name.
    """
    check_entry(config, shipped.name, paths.config_file())
    mine = with_scratch(personal_values(config, shipped.name, request), shipped)
    return UserSite(
        shipped=shipped,
        site=expand_placeholders(shipped, mine),
        personal=mine,
        account=account(shipped, mine),
        missing=missing_values(shipped, mine, dict(request.scheduler_options)),
        unknowns=tuple(unknown_keys),
    )
