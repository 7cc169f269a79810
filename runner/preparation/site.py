"""The site of a command, named or detected, with the user's own values in it.

1. what the command, RUNNER_SITE or the configuration names;
2. the box, where it is up;
3. the Slurm or PBS that answers here: its site file is detected once and kept under the cluster's name;
4. this machine, for verbs that prepare environments on it. A job is refused.

What was not named is always reported, with its source.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec

from runner.core import paths, strict_yaml
from runner.core.errors import RefusedError, UsageError
from runner.core.invocation import PROGRAM
from runner.core.strict_yaml import Document
from runner.model.backends import SCHEDULERS
from runner.model.request import PLAIN_NAME, Request
from runner.model.site import AtSite, Owned, Site, UserConfig
from runner.sites import loader
from runner.sites.loader import GENERIC, Unknown
from runner.sites.user import Personal, account, expand_placeholders, missing_values, personal_values

IDENTITY_S = 10.0  # for a controller to say its name
THIS_MACHINE = "local"
_HERE = "-here"
_NO_CLUSTERS = (GENERIC, THIS_MACHINE, "box", "hosts")  # shipped sites that are no one cluster

Say = Callable[[str], None]


def silent(_line: str) -> None:
    """Says nothing."""


@dataclass(frozen=True)
class UserSite:
    """A site as one user sees it.

    Attributes:
        site: with the user's values in the place of placeholders.
        account: whom to charge, with the site's suffix; None where the scheduler knows.
        missing: values that the site needs and the user has not given.
        request: with what this shell's variables say to the site's scheduler.
        unknowns: keys that the site's files leave unknown.
        file: as a command takes the site: its file, or its name where it is a shipped one.
        notes: lines that report what this shell's variables say.
    """

    site: Site
    personal: Personal
    account: str | None
    request: Request
    missing: tuple[Owned, ...]
    unknowns: tuple[Unknown, ...] = ()
    file: str = ""
    notes: tuple[str, ...] = ()


def read_user_site(
    name: str | None, request: Request, *, for_job: bool, say: Say = silent, keep: bool = True
) -> UserSite:
    """Read the site's files and the user's configuration, each once.

    Args:
        name: a site or a file, None for the one of the configuration; without either it is chosen.
        for_job: a job is planned: on nodes of a known shape, and not on this machine unless it is named.
        say: takes the lines that report a choice of ours.
        keep: whether what is detected may be written to the state directory.

    Raises UsageError: nothing is named and nothing answers; or a file is not right (says file:line and key);
    RefusedError: a scheduler is here and does not answer, or the generic site is named and none answers.
    """
    config = loader.read_config()
    named = name if name is not None else config.site or None
    if named is not None and not (named == GENERIC and for_job):
        where = "--site" if name is not None else loader.where_configured("site")
        documents = loader.read_documents(named, where)
    else:
        documents = _chosen_documents(named, say, for_job=for_job, keep=keep)
    if for_job:
        loader.check_shape(documents)
    file = named if named is not None and named != GENERIC else documents[0].name
    unknowns = loader.unknowns(documents)
    return with_user_values(loader.site_of(documents), request, config, unknowns, file)


def with_user_values(
    shipped: Site, request: Request, config: UserConfig, unknowns: Sequence[Unknown] = (), file: str = ""
) -> UserSite:
    """The site with the user's values: those of the request, else of the configuration, else what the site says of
    everybody's. Raises UsageError: the site has a placeholder that does not exist, the configuration has misspelt the
    site's name, or a variable of this shell cannot be read.
    """
    request, notes = shipped.settings.with_variables(request, os.environ)
    personal = personal_values(config, shipped, request)
    worlds = (request.world, config.sites.get(shipped.name, AtSite()).world, config.world, shipped.world)
    world = next((each for each in worlds if each is not None), None)
    return UserSite(
        site=msgspec.structs.replace(expand_placeholders(shipped, personal), world=world),
        personal=personal,
        account=account(shipped, personal),
        request=request,
        missing=missing_values(shipped, personal, dict(request.scheduler_options)),
        unknowns=tuple(unknowns),
        file=file,
        notes=notes,
    )


def _chosen_documents(named: str | None, say: Say, *, for_job: bool, keep: bool) -> tuple[Document, ...]:
    """The files of the site where none is named, or the generic one for a job."""
    if named is None:
        from runner import box

        if box.find(box.DEFAULT_NAME) is not None:
            say(f"site: {box.DEFAULT_NAME}, the box that is up on this machine (--site NAME chooses another)")
            return loader.read_documents(box.DEFAULT_NAME)
    cluster = _cluster_here(named)
    if cluster is not None:
        return _detected(*cluster, say, keep=keep)
    if named is not None:
        raise RefusedError(
            f"the site {GENERIC!r} is the Slurm that answers here, and there is none: no job is planned on nodes of an "
            "unknown shape",
            where=f"--site {GENERIC}",
            fix=f"on the cluster's login node: {PROGRAM} site detect -o my.yaml; then --site my.yaml anywhere",
        )
    if for_job:
        raise UsageError("no site chosen, and no Slurm or PBS answers here", where="--site", fix=_ways_to_name())
    say(f"site: {THIS_MACHINE}, this machine: no Slurm or PBS is here (--site NAME chooses another)")
    return loader.read_documents(THIS_MACHINE)


def plain_name(name: str) -> str:
    """A cluster's name as a site's: without what is not plain; ``detected`` where nothing is left."""
    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-._")[:64]
    return plain if PLAIN_NAME.match(plain) else "detected"


def site_here() -> str:
    """The name under which the cluster that answers here is kept. Raises RefusedError: none answers."""
    cluster = _cluster_here(None)
    if cluster is None:
        raise RefusedError("no Slurm or PBS is here", where="PATH", fix="run this on a login node of the cluster")
    return cluster[0]


def _cluster_here(named: str | None) -> tuple[str, str] | None:
    """The cluster whose scheduler answers, as a site's name, and the scheduler; None where no client of one is here.
    Raises RefusedError: a client is here, and gets no answer.
    """
    from runner.sites.detection.facts import ask

    unanswered = []
    for scheduler in (loader.read_site(GENERIC).scheduler,) if named == GENERIC else SCHEDULERS.every():
        facts = SCHEDULERS[scheduler]
        if not facts.identity:
            continue
        answer = ask(facts.identity, None, IDENTITY_S)
        identity = re.search(facts.cluster_name, answer.out, re.MULTILINE)
        if not answer.problem and identity:
            name = plain_name(identity[1])
            return f"{name}{_HERE}" if name in loader.names() else name, scheduler  # a shipped site is another one
        if not answer.absent:
            unanswered.append(answer)
    if not unanswered:
        return None
    what = f"the name of this cluster is not available: {unanswered[0].problem or 'it gives no name'}"
    fix = f"try again when the scheduler answers, or name the site: {_ways_to_name()}"
    raise RefusedError(what, where=unanswered[0].command, fix=fix)


def _detected(name: str, scheduler: str, say: Say, *, keep: bool) -> tuple[Document, ...]:
    from runner.sites.detection.cluster import detect, draft

    path, title = loader.kept_path(name), SCHEDULERS[scheduler].title
    if path.exists():
        documents = loader.read_documents(str(path))
        from_where = loader.kept_origin(documents[0].text) or title
        say(f"site: {name}, detected from {from_where}, kept in {path} (--site NAME chooses another)")
        return documents
    say(f"site: asking {title} about {name}; this is done once")
    detected = detect()
    if detected.cluster.lacking:
        why = "; ".join(f"`{command}`: {detected.cluster.silent[command]}" for command in detected.cluster.lacking)
        what = f"{name} has answered only in part, so no site file is kept: {why}"
        fix = f"try again when the scheduler answers, or name the site: {_ways_to_name()}"
        raise RefusedError(what, where=detected.scheduler, fix=fix)
    text = draft(detected, name)
    documents = loader.with_bases(strict_yaml.document_of(text.encode(), str(path)))
    if keep:
        loader.keep_site(name, text)
    state = f"kept in {path}: correct it there, or remove it to detect anew" if keep else f"not kept yet ({path})"
    say(f"site: {name}, detected from {detected.scheduler} on {detected.day}, {state} (--site NAME chooses another)")
    if left := [unknown.key for unknown in loader.unknowns(documents) if not unknown.needed]:
        how = f"; `{PROGRAM} site check {name}` says how to find them out" if keep else ""
        say(f"site: left to their defaults: {', '.join(left)}{how}")
    shipped = name.removesuffix(_HERE)
    if shipped != name and shipped not in _NO_CLUSTERS:
        say(f"site: a shipped site is called {shipped}, too: if this cluster is that one, use --site {shipped}")
    return documents


def _ways_to_name() -> str:
    return (
        f"--site NAME ({PROGRAM} site list), or RUNNER_SITE=NAME in this shell, or `site: NAME` in "
        f"{paths.config_file()}; a cluster that is not listed: {PROGRAM} site detect -o my.yaml on its login node, "
        "then --site my.yaml; this machine alone: --site local"
    )
