"""Ask a live cluster: which scheduler answers, and what it and its hosts report."""

from __future__ import annotations

import getpass
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from runner.core.errors import RefusedError
from runner.core.text import instead
from runner.model.runtimes import NATIVE, PROGRAMS, RUNTIMES
from runner.model.schedulers import SchedulerName
from runner.sites.detection import answers, host, pbs, slurm
from runner.sites.detection import slurm as slurm_facts
from runner.sites.detection.facts import Entry, Fact, Note, Unknown

ON_NODE_S = 120.0  # for a job of one task to begin and answer


@dataclass(frozen=True)
class Detected:
    """What was detected.

    Attributes:
        slurm, pbs: the one that answered; the other is None.
        login: this host. node: a GPU node, where one was asked.
        modules: that ``module avail`` lists here.
        silent: commands that did not answer, with the reason.
        day: when, ``2026-11-21``.
        lacking: of the silent commands those without which a site is not described: for nodes, partitions, queues.
    """

    slurm: slurm.Slurm | None
    pbs: pbs.Pbs | None
    login: host.Host | None
    node: host.Host | None
    modules: tuple[str, ...]
    silent: Mapping[str, str]
    day: str
    lacking: tuple[str, ...] = ()

    @property
    def scheduler(self) -> str:
        """What it is, with its version."""
        if self.slurm is not None:
            return f"Slurm {self.slurm.version}".strip()
        return f"PBS {self.pbs.version if self.pbs else ''}".strip()

    @property
    def scheduler_name(self) -> SchedulerName:
        """As a site file names it."""
        return "slurm" if self.slurm is not None else "pbs"

    @property
    def runtimes(self) -> tuple[str, ...]:
        """Container runtimes found: plugins of srun's, programs of the GPU node, else of this host."""
        options = self.slurm.options if self.slurm is not None else frozenset()
        plugins = [name for name, facts in RUNTIMES.items() if facts.srun_option in options]
        where = self.node or self.login
        programs = where.runtimes if where is not None else ()
        loaded = [name for name in PROGRAMS if self.module_of(name)]
        return tuple(dict.fromkeys((*plugins, *programs, *loaded)))

    def module_of(self, runtime: str) -> str:
        """The last module listed that brings a runtime; empty where there is none, or none is needed."""
        where = self.node or self.login
        if where is not None and runtime in where.runtimes:
            return ""
        found = [name for name in self.modules if name.split("/")[0].lower() == PROGRAMS.get(runtime, runtime)]
        return found[-1] if found else ""


def detect(
    clients: Path | None = None, *, partition: str | None = None, on_node: tuple[str, ...] | None = None
) -> Detected:
    """Ask the cluster that this host belongs to.

    Args:
        clients: where the scheduler's client programs lie; None for PATH.
        partition: whose nodes are meant; None for those with the most GPUs.
        on_node: also start a task of two minutes at most on one GPU node, with these further options of srun.

    Raises:
        RefusedError: no scheduler is here, none answers, or there is no such partition.
    """
    day = time.strftime("%Y-%m-%d")
    asked = answers.ask_all(
        {**slurm.commands(_user()), **{f"pbs {name}": words for name, words in pbs.COMMANDS.items()}}
        | {"here": host.HERE, "modules": host.MODULES},
        clients,
    )
    of_slurm = {name: asked[name] for name in slurm.commands(_user())}
    of_pbs = {name: asked[f"pbs {name}"] for name in pbs.COMMANDS}
    answered = not of_slurm["nodes"].problem or not of_slurm["partitions"].problem
    cluster = slurm.read(of_slurm) if answered else None
    complex_ = pbs.read(of_pbs) if not answered and not of_pbs["nodes"].problem else None
    if cluster is None and complex_ is None:
        raise _no_scheduler(of_slurm["nodes"], of_pbs["nodes"])
    if cluster is not None and partition is not None and partition not in {each.name for each in cluster.partitions}:
        known = [each.name for each in cluster.partitions]
        fix = instead(partition, known, f"partitions: {', '.join(known)}")
        raise RefusedError(f"no partition {partition!r} here", where="--partition", fix=fix)
    node = _node(cluster, clients, partition, on_node) if on_node is not None else None
    silent = cluster.silent if cluster is not None else complex_.silent if complex_ is not None else {}
    needed = (of_slurm["nodes"], of_slurm["partitions"]) if cluster is not None else (of_pbs["queues"],)
    return Detected(
        slurm=cluster,
        pbs=complex_,
        login=host.read(asked["here"]),
        node=node,
        modules=host.modules(asked["modules"]),
        silent=silent,
        day=day,
        lacking=tuple(answer.command for answer in needed if answer.problem),
    )


def entries(found: Detected, partition: str | None = None) -> tuple[Entry, ...]:
    """All that goes into a site file, in the order of ``draft``."""
    of_scheduler = (
        slurm_facts.entries(found.slurm, partition, found.day)
        if found.slurm is not None
        else pbs.entries(found.pbs, found.day)
        if found.pbs is not None
        else ()
    )
    silence = [Note("description", f"no answer from `{command}`: {why}") for command, why in found.silent.items()]
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


def _node(
    cluster: slurm.Slurm | None, clients: Path | None, partition: str | None, options: tuple[str, ...]
) -> host.Host:
    """What a GPU node says of itself.

    Raises:
        RefusedError: it cannot be asked, or did not answer.
    """
    if cluster is None:
        raise RefusedError(
            "a node of PBS is asked by a job of your own: this one asks through srun only",
            where="--on-node",
            fix="leave it out, and fill in what stays unknown",
        )
    named = (f"--partition={partition}",) if partition else ()
    words = ("srun", "--quiet", "--nodes=1", "--ntasks=1", "--time=2", "--gres=gpu:1", "--mpi=none", *named, *options)
    answer = answers.ask((*words, *host.HERE), clients, ON_NODE_S)
    found = host.read(answer)
    if found is None:
        raise RefusedError(
            f"no GPU node answered: {answer.problem or 'srun said nothing'}",
            where=" ".join(words),
            fix="options that the site demands: --on-node -S account=NAME -S partition=NAME; or leave --on-node out",
        )
    return found


def _no_scheduler(of_slurm: answers.Answer, of_pbs: answers.Answer) -> RefusedError:
    if of_slurm.absent and of_pbs.absent:
        return RefusedError(
            "neither Slurm's nor PBS's clients are here",
            where="PATH",
            fix="run this on the cluster's login node; for this machine alone there is `--site local`",
        )
    silent = of_pbs if of_slurm.absent else of_slurm
    return RefusedError(
        f"the scheduler does not answer: {silent.problem}", where=silent.command, fix="try again when it does"
    )


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a user id without a name
        return ""
