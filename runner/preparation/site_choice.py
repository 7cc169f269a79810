"""Which site is meant where a command names none, or only the generic one: the cluster that answers here.

1. what the command, RUNNER_SITE or the configuration names;
2. the box, where it is up;
3. the Slurm or PBS that answers here: its site file is detected once and kept under the cluster's name;
4. this machine, for verbs that prepare environments on it. A job is refused.

What was not named is always reported, with its source.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from runner.core import paths, strict_yaml
from runner.core.errors import RefusedError, UsageError
from runner.core.invocation import PROGRAM
from runner.core.strict_yaml import Document
from runner.model.names import PLAIN_NAME
from runner.model.schedulers import SCHEDULERS
from runner.sites import loader
from runner.sites.loader import GENERIC, check_shape, names, read_documents, read_site, with_bases

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
    from runner.sites.detection.answers import ask

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
    from runner.sites.detection.cluster import detect
    from runner.sites.detection.draft import draft

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
