"""Asking a cluster's clients, each bounded in time; and what a site file is made of: facts, unknowns, remarks."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from runner.core import process
from runner.core.errors import RunnerError

TIMEOUT_S = 20.0
MOST = 4_000_000  # characters that are kept of an answer


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


def ask(words: tuple[str, ...], clients: Path | None, timeout_s: float) -> Answer:
    """Run one command; Ctrl-C ends it."""
    command = " ".join(words) if len(" ".join(words)) < 100 else f"{words[0]} ..."
    own = clients / words[0] if clients else None
    program = str(own) if own and own.exists() else words[0]
    try:
        done = process.run((program, *words[1:]), timeout_s=timeout_s, check=False, env=_environment())
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
class GpuNodes:
    """The nodes that jobs are planned for.

    Attributes:
        kinds: type of GPU as the scheduler names it, empty for none -> GPUs of each node.
        gpus: of each node, of whatever type; slices count only where there is nothing else.
        cpus: that jobs are given of each. memory_mb: of the smallest.
        count, up: how many there are, and can be used now.
    """

    kinds: Mapping[str, int]
    gpus: int
    cpus: int
    memory_mb: int
    count: int
    up: int


class Cluster(Protocol):
    """A cluster as its scheduler's clients describe it; what is unknown is empty.

    Attributes:
        name: as the scheduler names it. version: of the scheduler.
        partitions_known: what ``site detect --partition`` takes.
        options: long options, without dashes, that plugins add to the starter of tasks.
        mpi: the starter's ways to start MPI programs.
        silent: commands that did not answer -> the reason.
        lacking: of them those without which a site is not described: for nodes, partitions, queues.
    """

    @property
    def name(self) -> str: ...
    @property
    def version(self) -> str: ...
    @property
    def partitions_known(self) -> tuple[str, ...]: ...
    @property
    def options(self) -> frozenset[str]: ...
    @property
    def mpi(self) -> tuple[str, ...]: ...
    @property
    def silent(self) -> Mapping[str, str]: ...
    @property
    def lacking(self) -> tuple[str, ...]: ...

    def queue_limits(self) -> dict[str, dict[str, int]]:
        """The queues that jobs can go to now, each with its limits as a site file has them."""

    def gpu_nodes(self, queues: Iterable[str], /) -> GpuNodes | None:
        """The nodes that jobs are planned for, of these queues if any are given; None where none has GPUs."""

    def entries(self, partition: str | None, day: str, /) -> Iterable[Entry]:
        """All for a site file, of the nodes of that partition, or of those with the most GPUs; asked on that day."""


def seconds(clock: str) -> int | None:
    """Slurm's ``[days-]hours:minutes:seconds`` and PBS's ``hours:minutes:seconds``; None for no limit."""
    found = re.fullmatch(r"(?:(\d+)-)?(\d+):(\d+)(?::(\d+))?", clock)
    if not found:
        return None
    days, first, second, third = (int(part or 0) for part in found.groups())
    if found[4] is None and not found[1]:
        return first * 60 + second
    return ((days * 24 + first) * 60 + second) * 60 + third


def natural(text: str) -> int | None:
    """A number above zero; None for anything else (``UNLIMITED``, ``N/A``, ``0``)."""
    return int(text) or None if re.fullmatch(r"\d{1,12}", text) else None
