"""The site of a command, named or detected, with the user's own values in it; where its scheduler's clients are."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from runner.core import paths, strict_yaml
from runner.core.errors import RefusedError, UsageError
from runner.core.invocation import PROGRAM
from runner.core.strict_yaml import Document
from runner.model.backends import SCHEDULERS
from runner.model.request import PLAIN_NAME, Request
from runner.model.site import Owned, Site, UserConfig
from runner.sites import loader
from runner.sites.loader import (
    GENERIC,
    Unknown,
    check_shape,
    names,
    read_documents,
    read_site,
    site_of,
    unknowns,
    with_bases,
)
from runner.sites.user import (
    Personal,
    account,
    check_entry,
    expand_placeholders,
    missing_values,
    personal_values,
    read_config,
    with_scratch,
)

IDENTITY_S = 10.0  # for a controller to say its name
THIS_MACHINE = "local"
_HERE = "-here"
_NO_CLUSTERS = (GENERIC, THIS_MACHINE, "box", "hosts")  # shipped sites that are no one cluster

Say = Callable[[str], None]


def silent(_line: str) -> None:
    """Says nothing."""


@dataclass(frozen=True)
class Cluster:
    """The cluster that this host belongs to: its name, as a site's, and its scheduler."""

    name: str
    scheduler: str


def choose_documents(named: str | None, say: Say, *, for_job: bool, keep: bool = True) -> tuple[Document, ...]:
    """The files of the site that is meant.

    Args:
        named: by the command, RUNNER_SITE or the configuration; None for no name.
        say: takes the lines that report a choice of ours.
        for_job: a job is planned: on nodes of a known shape, and not on this machine unless it is named.
        keep: whether what is detected may be written to the state directory.

    Raises:
        UsageError: nothing is named and nothing answers; or a file is not right.
        RefusedError: a scheduler is here and does not answer, or the generic site is named and none answers.
    """
    if named is not None and not (named == GENERIC and for_job):
        return _named(named, for_job=for_job)
    if named is None and (name := _box()):
        say(f"site: {name}, the box that is up on this machine (--site NAME chooses another)")
        return read_documents(name)
    cluster = _cluster_here(named)
    if cluster is not None:
        documents = _detected(cluster, say, keep=keep)
        if for_job:
            check_shape(documents)
        return documents
    if named is None and not for_job:
        say(f"site: {THIS_MACHINE}, this machine: no Slurm or PBS is here (--site NAME chooses another)")
        return read_documents(THIS_MACHINE)
    if named is None:
        raise UsageError("no site chosen, and no Slurm or PBS answers here", where="--site", fix=_ways())
    raise RefusedError(
        f"the site {GENERIC!r} is the Slurm that answers here, and there is none: no job is planned on nodes of an "
        "unknown shape",
        where=f"--site {GENERIC}",
        fix=f"on the cluster's login node: {PROGRAM} site detect -o my.yaml; then --site my.yaml anywhere",
    )


def _named(name: str, *, for_job: bool) -> tuple[Document, ...]:
    documents = read_documents(name)
    if for_job:
        check_shape(documents)
    return documents


def plain_name(name: str) -> str:
    """A cluster's name as a site's: without what is not plain; ``detected`` where nothing is left."""
    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-._")[:64]
    return plain if PLAIN_NAME.match(plain) else "detected"


def _box() -> str:
    """The shipped site of the box that is up; empty if none is."""
    from runner import box

    return box.DEFAULT_NAME if box.find(box.DEFAULT_NAME) is not None else ""


def _cluster_here(named: str | None) -> Cluster | None:
    """The cluster whose scheduler answers; None where no client of one is here.

    Raises:
        RefusedError: a client is here, and gets no answer.
    """
    from runner.sites.detection.facts import ask

    unanswered = []
    schedulers = (read_site(GENERIC).scheduler,) if named == GENERIC else SCHEDULERS.every()
    for scheduler, facts in ((name, SCHEDULERS[name]) for name in schedulers):
        if not facts.identity:
            continue
        answer = ask(facts.identity, None, IDENTITY_S)
        found = re.search(facts.cluster_name, answer.out, re.MULTILINE)
        if not answer.problem and found:
            return Cluster(_site_name(found[1]), scheduler)
        if not answer.absent:
            unanswered.append(answer)
    if not unanswered:
        return None
    raise RefusedError(
        f"the name of this cluster is not available: {unanswered[0].problem or 'it gives no name'}",
        where=unanswered[0].command,
        fix=f"try again when the scheduler answers, or name the site: {_ways()}",
    )


def _site_name(cluster: str) -> str:
    """Not that of a shipped site, which is another one."""
    name = plain_name(cluster)
    return f"{name}{_HERE}" if name in names() else name


def _detected(cluster: Cluster, say: Say, *, keep: bool) -> tuple[Document, ...]:
    from runner.sites.detection.cluster import detect, draft

    path = loader.kept_path(cluster.name)
    if path.exists():
        documents = read_documents(str(path))
        from_where = loader.kept_origin(documents[0].text) or SCHEDULERS[cluster.scheduler].title
        say(f"site: {cluster.name}, detected from {from_where}, kept in {path} (--site NAME chooses another)")
        return documents
    say(f"site: asking {SCHEDULERS[cluster.scheduler].title} about {cluster.name}; this is done once")
    found = detect()
    if found.cluster.lacking:
        why = "; ".join(f"`{command}`: {found.cluster.silent[command]}" for command in found.cluster.lacking)
        raise RefusedError(
            f"{cluster.name} has answered only in part, so no site file is kept: {why}",
            where=found.scheduler,
            fix=f"try again when the scheduler answers, or name the site: {_ways()}",
        )
    text = draft(found, cluster.name)
    documents = with_bases(strict_yaml.document_of(text.encode(), str(path)))
    if keep:
        loader.keep_site(cluster.name, text)
    state = f"kept in {path}: correct it there, or remove it to detect anew" if keep else f"not kept yet ({path})"
    say(f"site: {cluster.name}, detected from {found.scheduler} on {found.day}, {state} (--site NAME chooses another)")
    shipped = cluster.name.removesuffix(_HERE)
    if shipped != cluster.name and shipped not in _NO_CLUSTERS:
        say(f"site: a shipped site is called {shipped}, too: if this cluster is that one, use --site {shipped}")
    return documents


def _ways() -> str:
    config = paths.config_file()
    return (
        f"--site NAME ({PROGRAM} site list), or RUNNER_SITE=NAME in this shell, or `site: NAME` in {config}; a cluster "
        f"that is not listed: {PROGRAM} site detect -o my.yaml on its login node, then --site my.yaml; this machine "
        "alone: --site local"
    )


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


def clients(site: Site) -> Path | None:
    """The directory of the site's client programs; None for PATH.

    Raises:
        RefusedError: the site is a box that is not up.
    """
    if not site.box:
        return None
    from runner import box  # what makes one is long to import, and no other site needs it

    if box.inside() == site.box:
        return None
    running = box.find(site.box)
    if running is None:
        raise RefusedError(
            f"the box {site.box!r} is not up",
            where=f"site {site.name}",
            fix=f"{PROGRAM} box up --name {site.box}",
        )
    return running.bin_dir
