"""Ask a live cluster: which scheduler answers, and what it and its hosts report."""

from __future__ import annotations

import getpass
import time
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Protocol, cast

from runner.core.errors import RefusedError
from runner.core.text import instead
from runner.model.backends import NATIVE, RUNTIMES, SCHEDULERS, runtime_programs
from runner.sites.detection import answers, host
from runner.sites.detection.answers import Answer
from runner.sites.detection.facts import Cluster, Entry, Fact, Note, Unknown

ON_NODE_S = 120.0  # for a job of one task to begin and answer


class Detection(Protocol):
    """What the module offers that ``SchedulerFacts.detection`` names. It may have ``on_node``, too: from a partition
    and further options to the command that starts a task on a GPU node.
    """

    def commands(self, user: str) -> Mapping[str, tuple[str, ...]]:
        """Name -> argument list of all that is asked; without an answer of the first the scheduler is not here."""

    def answered(self, answers: Mapping[str, Answer]) -> bool:
        """Whether these are answers of a cluster."""

    def read(self, answers: Mapping[str, Answer]) -> Cluster:
        """The cluster that gave these answers, by the names of ``commands``."""


@dataclass(frozen=True)
class Detected:
    """What was detected.

    Attributes:
        scheduler_name: of the scheduler that answered, as a site file names it; cluster: what it tells.
        login: this host. node: a GPU node, where one was asked.
        modules: that ``module avail`` lists here.
        day: when, ``2026-11-21``.
    """

    scheduler_name: str
    cluster: Cluster
    login: host.Host | None
    node: host.Host | None
    modules: tuple[str, ...]
    day: str

    @property
    def scheduler(self) -> str:
        """What it is, with its version."""
        return f"{SCHEDULERS[self.scheduler_name].title} {self.cluster.version}".strip()

    @property
    def runtimes(self) -> tuple[str, ...]:
        """Container runtimes found: plugins of srun's, programs of the GPU node, else of this host."""
        plugins = [name for name, facts in RUNTIMES.items() if facts.srun_option in self.cluster.options]
        where = self.node or self.login
        here = where.runtimes if where is not None else ()
        loaded = [name for name in runtime_programs() if self.module_of(name)]
        return tuple(dict.fromkeys((*plugins, *here, *loaded)))

    def module_of(self, runtime: str) -> str:
        """The last module listed that brings a runtime; empty where there is none, or none is needed."""
        where = self.node or self.login
        if where is not None and runtime in where.runtimes:
            return ""
        program = runtime_programs().get(runtime, runtime)
        found = [name for name in self.modules if name.split("/")[0].lower() == program]
        return found[-1] if found else ""


def detect(
    clients: Path | None = None, *, partition: str | None = None, on_node: tuple[str, ...] | None = None
) -> Detected:
    """Ask the cluster that this host belongs to.

    Args:
        clients: where the scheduler's client programs lie; None for PATH.
        partition: whose nodes are meant; None for those with the most GPUs.
        on_node: also start a task of two minutes at most on one GPU node, with these further options.

    Raises:
        RefusedError: no scheduler is here, none answers, or there is no such partition.
    """
    day = time.strftime("%Y-%m-%d")
    schedulers = {name: SCHEDULERS[name] for name in SCHEDULERS.every() if SCHEDULERS[name].detection}
    modules = {name: cast(Detection, import_module(facts.detection)) for name, facts in schedulers.items()}
    commands = {name: module.commands(_user()) for name, module in modules.items()}
    asked = answers.ask_all(
        {f"{name} {key}": words for name, those in commands.items() for key, words in those.items()}
        | {"here": host.here(), "modules": host.MODULES},
        clients,
    )
    given = {name: {key: asked[f"{name} {key}"] for key in those} for name, those in commands.items()}
    name = next((name for name, module in modules.items() if module.answered(given[name])), "")
    if not name:
        raise _no_scheduler({schedulers[name].title: next(iter(each.values())) for name, each in given.items()})
    cluster = modules[name].read(given[name])
    known = cluster.partitions_known
    if partition is not None and known and partition not in known:
        fix = instead(partition, known, f"partitions: {', '.join(known)}")
        raise RefusedError(f"no partition {partition!r} here", where="--partition", fix=fix)
    node = None
    if on_node is not None:
        start = getattr(modules[name], "on_node", None)
        if start is None:
            raise RefusedError(
                f"a node of {schedulers[name].title} is asked by a job of your own: it has no command for one task",
                where="--on-node",
                fix="leave it out",
            )
        node = _node(start(partition, on_node), clients)
    return Detected(
        scheduler_name=name,
        cluster=cluster,
        login=host.read(asked["here"]),
        node=node,
        modules=host.modules(asked["modules"]),
        day=day,
    )


def entries(found: Detected, partition: str | None = None) -> tuple[Entry, ...]:
    """All that goes into a site file, in the order of ``draft``."""
    of_scheduler = found.cluster.entries(partition, found.day)
    unanswered = found.cluster.silent.items()
    silence = [Note("description", f"no answer from `{command}`: {why}") for command, why in unanswered]
    hosts = host.entries(found.login, found.node, found.modules, found.day)
    everything = (*silence, *_runtime_entries(found), *of_scheduler, *hosts)
    known = {entry.key for entry in everything if isinstance(entry, Fact)}
    return tuple(entry for entry in everything if not (isinstance(entry, Unknown) and entry.key in known))


def _runtime_entries(found: Detected) -> tuple[Entry, ...]:
    where = f"on {found.node.name}" if found.node is not None else "here; a GPU node was not asked"
    containers = ", ".join(name for name in RUNTIMES if name != NATIVE)
    none = Note("runtimes", f"no container runtime on PATH {where}; what the site has stands first: {containers}")
    loads = ((name, found.module_of(name)) for name in found.runtimes)
    source = f"module avail, {found.day}"
    return (
        *(() if found.runtimes else (none,)),
        Fact("runtimes", [*found.runtimes, NATIVE], f"`srun --help` and PATH {where}, {found.day}"),
        *(Fact(f"ways.{name}.load", [["module", "load", module]], source) for name, module in loads if module),
    )


def _node(start: tuple[str, ...], clients: Path | None) -> host.Host:
    """What a GPU node says of itself, in a task that ``start`` starts. Raises RefusedError where it does not answer."""
    answer = answers.ask((*start, *host.here()), clients, ON_NODE_S)
    found = host.read(answer)
    if found is None:
        raise RefusedError(
            f"no GPU node answered: {answer.problem or f'{start[0]} said nothing'}",
            where=" ".join(start),
            fix="options that the site demands: --on-node -S account=NAME -S partition=NAME; or leave --on-node out",
        )
    return found


def _no_scheduler(first: Mapping[str, Answer]) -> RefusedError:
    """The error where no scheduler answers; ``first``: the title of each -> what became of its first command."""
    silent = next((answer for answer in first.values() if not answer.absent), None)
    if silent is None:
        return RefusedError(
            f"no client of {' or '.join(first)} is here",
            where="PATH",
            fix="run this on the cluster's login node; for this machine alone there is `--site local`",
        )
    return RefusedError(
        f"the scheduler does not answer: {silent.problem}", where=silent.command, fix="try again when it does"
    )


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a user id without a name
        return ""
