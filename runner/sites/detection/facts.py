"""Asking a cluster's clients, each bounded in time; and what a site file is made of: facts, unknowns, remarks."""

from __future__ import annotations

import os
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from runner.core import paths, process
from runner.core.errors import RunnerError
from runner.core.text import clock_s

TIMEOUT_S = 20.0
MOST = 4_000_000  # characters that are kept of an answer
_MIG = re.compile(r"\dg\.\d+gb", re.IGNORECASE)


@dataclass(frozen=True)
class Answer:
    """What a command said.

    Attributes:
        command: as a person would type it.
        problem: why there is no answer; empty where there is one. ``absent``: there is no such program.
    """

    command: str
    out: str = ""
    err: str = ""
    problem: str = ""
    absent: bool = False

    @property
    def both_streams(self) -> str:
        """Some clients answer on the second one."""
        return f"{self.out}\n{self.err}"


def ask_all(
    commands: Mapping[str, tuple[str, ...]], clients: Path | None = None, timeout_s: float = TIMEOUT_S
) -> dict[str, Answer]:
    """Run all commands at once; returns an answer for each, under its name.

    Args:
        commands: name -> argument list.
        clients: where the scheduler's client programs lie; None for PATH.
        timeout_s: seconds for each.
    """
    with ThreadPoolExecutor(max_workers=max(1, len(commands))) as pool:
        asked = {name: pool.submit(ask, words, clients, timeout_s) for name, words in commands.items()}
        return {name: answer.result() for name, answer in asked.items()}


def ask(words: tuple[str, ...], clients: Path | None, timeout_s: float, *, on_node: bool = False) -> Answer:
    """Run one command; Ctrl-C ends it. ``on_node``: it takes our environment to another machine."""
    command = " ".join(words) if len(" ".join(words)) < 100 else f"{words[0]} ..."
    own = clients / words[0] if clients else None
    program = str(own) if own and own.exists() else str(process.find(words[0]) or words[0])
    env = paths.for_other_machines(_environment()) if on_node else _environment()
    try:
        done = process.run((program, *words[1:]), timeout_s=timeout_s, check=False, env=env)
    except process.CommandNotFoundError as error:
        return Answer(command, problem=error.what, absent=True)
    except RunnerError as error:
        return Answer(command, problem=error.what)
    problem = "" if done.code == 0 else f"exit {done.code}: {done.last_lines(2)}"
    return Answer(command, done.out[:MOST], done.err[:MOST], problem)


def _environment() -> dict[str, str]:
    """Ours in plain English, without what shapes the answers of Slurm's clients (SINFO_FORMAT, SLURM_CLUSTERS)."""
    dropped = ("SLURM_", "SBATCH_", "SINFO_", "SCONTROL_")
    env = {name: value for name, value in os.environ.items() if not name.startswith(dropped) or name == "SLURM_CONF"}
    return {**env, "LC_ALL": "C"}


Value = str | int | bool | None | list[str] | list[list[str]] | dict[str, str] | dict[str, dict[str, int]]


@dataclass(frozen=True)
class Fact:
    """One value of a site file.

    Attributes:
        key: dotted, as in the file (``node.gpus``).
        source: the command that printed it, and the day.
    """

    key: str
    value: Value
    source: str


@dataclass(frozen=True)
class Unknown:
    """A key whose value is unknown here; ``how`` to find it out. ``needed``: no job can be planned by the default."""

    key: str
    how: str
    needed: bool = False


@dataclass(frozen=True)
class Note:
    """A remark that stands above a key in the file."""

    key: str
    text: str


Entry = Fact | Unknown | Note


@dataclass(frozen=True)
class Node:
    """One node, as the scheduler gives it out.

    Attributes:
        gpus: type of GPU as the scheduler names it, empty for none -> GPUs of it.
        threads_per_core: 0 where the scheduler does not say: ``cores`` may be hardware threads then.
        queues: that it is in; empty where the scheduler does not say.
        traits: features, or custom resources as ``name=value``, by which jobs can ask for it.
    """

    name: str
    gpus: tuple[tuple[str, int], ...]
    cores: int
    memory_mb: int
    usable: bool
    threads_per_core: int = 0
    queues: frozenset[str] = frozenset()
    traits: frozenset[str] = frozenset()

    @property
    def whole_gpus(self) -> tuple[tuple[str, int], ...]:
        """Those that are no slices."""
        return tuple(entry for entry in self.gpus if not _MIG.search(entry[0]))

    @property
    def cpus(self) -> int:
        """That jobs are given."""
        return self.cores * max(1, self.threads_per_core)


@dataclass(frozen=True)
class Queue:
    """A queue or partition.

    Attributes:
        open: jobs of this user can go to it now. limits: as a site file's ``queues`` has them.
        limited: it is not for everybody. refusal: why it takes no job of this user's; empty where it may.
    """

    name: str
    open: bool
    is_default: bool
    limits: Mapping[str, int]
    limited: bool = False
    refusal: str = ""


@dataclass(frozen=True, kw_only=True)
class Cluster(ABC):
    """A cluster as its scheduler's clients describe it; what is unknown is empty. Each scheduler has a subclass.

    Attributes:
        name: as the scheduler names it. version: of the scheduler.
        partitions_known: what ``site detect --partition`` takes.
        options: long options, without dashes, that plugins add to the starter of tasks.
        mpi: the starter's ways to start MPI programs.
        silent: commands that did not answer -> the reason.
        lacking: of them those without which a site is not described: for nodes, partitions, queues.
    """

    version: str
    nodes: tuple[Node, ...]
    queues: tuple[Queue, ...]
    silent: Mapping[str, str]
    lacking: tuple[str, ...] = ()
    name: str = ""
    partitions_known: tuple[str, ...] = ()
    options: frozenset[str] = frozenset()
    mpi: tuple[str, ...] = ()

    def queue_limits(self) -> dict[str, dict[str, int]]:
        """The queues that jobs can go to now, each with its limits."""
        return {queue.name: dict(queue.limits) for queue in self.queues if queue.open}

    def gpu_queues(self, queues: Iterable[str] = (), first: str | None = None) -> tuple[Queue, ...]:
        """Those of ``queue_limits`` that hold the nodes of ``gpu_nodes``: ``first``, then the scheduler's default."""
        holding = frozenset[str]().union(*(node.queues for node in self.gpu_nodes(queues)))
        usable = [each for each in self.queues if each.open and each.name in holding]
        return tuple(sorted(usable, key=lambda each: (each.name != first, not each.is_default)))

    def gpu_nodes(self, queues: Iterable[str] = ()) -> tuple[Node, ...]:
        """The nodes to plan for: of the shape that has the most GPUs in all, of these queues; without any of those that
        jobs can go to now, if one has GPUs.

        Of shapes that differ in memory alone the smallest memory counts, so they are one.
        """
        having = [node for node in self.nodes if node.gpus]
        wanted = frozenset(queues)
        usable = wanted or frozenset(self.queue_limits())
        chosen = [node for node in having if not usable or not node.queues or node.queues & usable]
        groups: dict[object, list[Node]] = {}
        for node in chosen if chosen or wanted else having:
            groups.setdefault((node.gpus, node.cores, node.threads_per_core), []).append(node)
        return tuple(max(groups.values(), key=_gpus_of, default=[]))

    @abstractmethod
    def entries(self, partition: str | None, day: str) -> Iterable[Entry]:
        """All for a site file, of the nodes of that partition, or of those with the most GPUs; asked on that day."""


def _gpus_of(nodes: Iterable[Node]) -> tuple[int, int]:
    """Whole GPUs count first, slices only among those that have none."""
    return sum(count_of(node.whole_gpus) for node in nodes), sum(count_of(node.gpus) for node in nodes)


def count_of(gpus: Iterable[tuple[str, int]]) -> int:
    """GPUs, and slices of GPUs, whatever their type."""
    return sum(count for _, count in gpus)


def node_entries(group: Sequence[Node], source: str, unknown: str, cores: str = "") -> Iterator[Entry]:
    """The shape of nodes that are alike.

    Args:
        unknown: how to find it out where there are none. cores: what follows the source of their cores.
    """
    if not group:
        yield from (Unknown(f"node.{key}", unknown, needed=True) for key in ("gpus", "cores", "memory_mb"))
        return
    first = group[0]
    kind, gpus = max(first.whole_gpus or first.gpus, key=lambda entry: entry[1])
    yield Fact("node.gpus", gpus, source)
    if kind:
        yield Fact("node.gpu_type", kind, source)
    if len(first.gpus) > 1:
        further = ", ".join(f"{count} x {name or 'untyped'}" for name, count in first.gpus if name != kind)
        yield Note("node.gpu_type", f"each node also has {further}: --gpu-type asks for them")
    yield Fact("node.cores", first.cores, source + cores)
    if first.threads_per_core:
        yield Fact("node.threads_per_core", first.threads_per_core, source)
    yield Fact("node.memory_mb", min(node.memory_mb for node in group), source)
    yield Fact("node.count", len(group), f"{source}; {sum(node.usable for node in group)} of them up")


def limits_of(min_nodes: str, max_nodes: str, clock: str) -> dict[str, int]:
    """A queue's limits, without those that limit nothing."""
    known = {"min_nodes": natural(min_nodes), "max_nodes": natural(max_nodes), "max_walltime_s": clock_s(clock)}
    return {key: value for key, value in known.items() if value and (key, value) != ("min_nodes", 1)}


def natural(text: str) -> int | None:
    """A number above zero; None for anything else (``UNLIMITED``, ``N/A``, ``0``)."""
    return int(text) or None if re.fullmatch(r"\d{1,12}", text) else None
