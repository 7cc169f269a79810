"""Values that only the user knows (account, project, scratch, field), put into a site before anything is planned."""

from __future__ import annotations

import getpass
import re
from collections.abc import Collection
from typing import Any, get_args

import msgspec

from runner.core import paths
from runner.core.errors import UsageError
from runner.core.text import instead, nearest
from runner.model.request import Request
from runner.model.site import AtSite, Owned, Site, UserConfig
from runner.sites import loader

NO_ACCOUNT = "none"  # the value that leaves it to the scheduler
NAMES = ("account", "project", "scratch", "field", "user", "application")
_NO_FIELD = re.compile(r"""[;='"\\\x00-\x1f\x7f]""")
_PLACEHOLDER = re.compile(r"\{([a-z_]+)\}")
_NEAR = 0.65  # of difflib's ratio: two neighbouring letters swapped in a name of three to five


class Personal(msgspec.Struct, frozen=True):
    """The user's values at one site; empty where not given.

    Attributes:
        account: whom to charge, without a site's suffix.
        project: name of the project's directory.
        scratch: absolute path of the user's scratch directory.
        field: field of research, by the site's name for it.
        user: login name.
        application: the site's name for what the job's recipe runs.
    """

    account: str = ""
    project: str = ""
    scratch: str = ""
    field: str = ""
    user: str = ""
    application: str = ""


def login_name() -> str:
    """This user's; empty for a user id without a name."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return ""


def personal_values(config: UserConfig, site: Site, request: Request) -> Personal:
    """The user's values at a site: of the request, else of its entry in the configuration, else for all sites; without
    a scratch directory the one that the site gives to every user. Raises UsageError: the configuration has misspelt the
    site's name.
    """
    _check_entry(config, site.name)
    here = config.sites.get(site.name, AtSite())
    user = login_name()
    return Personal(
        account=request.account or here.account or config.account,
        project=request.project or here.project or config.project,
        scratch=request.scratch or here.scratch or config.scratch or site.scratch.path.replace("{user}", user),
        field=request.field or here.field or config.field,
        user=user,
        application=site.applications.get(request.recipe or "", ""),
    )


def _check_entry(config: UserConfig, site: str) -> None:
    """Refuse a misspelt name: a shipped site without an entry, beside one of a name very near it that no site has."""
    if not config.sites or site in config.sites or site not in (shipped := loader.names()):
        return
    near = nearest(site, sorted(config.sites.keys() - set(shipped)), least=_NEAR)
    if near:
        what = f"no site is named {near!r}: did you mean {site!r}?"
        fix = f"correct the name; if {near!r} is a site of your own, give {site!r} an entry, too: `{site}: {{}}`"
        raise UsageError(what, where=f"{paths.config_file()}: sites.{near}", fix=fix)


def expand_placeholders(site: Site, personal: Personal) -> Site:
    """The site with ``{account}`` and its like replaced; ``ACCOUNT-NOT-SET`` where the value is not given. Raises
    UsageError: a placeholder that does not exist; names the nearest. A field of research that would end its part of the
    comment.
    """
    if _NO_FIELD.search(personal.field):
        what = f"{personal.field!r} is no field of research: no ; = or quotes may stand in its name"
        fix = "give the name alone, and a whole comment as -S 'comment=field=NAME;appl=NAME'"
        raise UsageError(what, where="--field, or `field` of your configuration", fix=fix)

    def value_of(match: re.Match[str]) -> str:
        name = match[1]
        if name not in NAMES:
            fix = instead(name, NAMES, f"placeholders: {', '.join(NAMES)}")
            raise UsageError(f"{{{name}}} is not a placeholder", where=f"site {site.name}", fix=fix)
        default = site.applications.get("default", "") if name == "application" else ""
        return str(getattr(personal, name)) or default or _not_set(name)

    def expanded(value: Any) -> Any:
        if isinstance(value, str):
            return _PLACEHOLDER.sub(value_of, value)
        if isinstance(value, dict):
            return {key: expanded(item) for key, item in value.items()}
        return [expanded(item) for item in value] if isinstance(value, list | tuple) else value

    return msgspec.convert(expanded(msgspec.to_builtins(site)), Site)


def missing_values(site: Site, personal: Personal, given: Collection[str] = ()) -> tuple[Owned, ...]:
    """Values that the site needs, or has a placeholder for, and the user has not given.

    Args:
        given: options of the scheduler that the job gives itself: of the site's, theirs need nothing. The field of
            research stands in such an option, and nowhere else.
    """
    document = msgspec.to_builtins(site)
    options = {name: value for name, value in site.settings.directives.items() if name not in given}
    document["scheduler_settings"] |= {"directives": options}
    named = set(_PLACEHOLDER.findall(str(document)))
    needs = named | set(site.needs) - {"field"}
    owned: tuple[Owned, ...] = get_args(Owned)
    missing = {name for name in owned if name in needs and not getattr(personal, name)}
    if personal.account == NO_ACCOUNT and "account" in named:
        missing.add("account")
    return tuple(name for name in owned if name in missing)


def account(site: Site, personal: Personal) -> str | None:
    """The account that a GPU job is charged to; None where the scheduler knows, or is to choose."""
    if personal.account == NO_ACCOUNT:
        return None
    if personal.account:
        return personal.account.removesuffix(site.account_suffix) + site.account_suffix
    return _not_set("account") if "account" in site.needs else None


def _not_set(name: str) -> str:
    """What a script contains where the user has not given a value."""
    return f"{name.upper()}-NOT-SET"
