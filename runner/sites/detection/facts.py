"""Facts, unknowns and remarks for a site file."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

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
