"""Bandwidth of an allreduce from raw times, as nccl-tests define it (its doc/PERFORMANCE.md). Pure.

Algorithm bandwidth is the size of the message over the time. Bus bandwidth is that times 2 (n - 1) / n: what each of n
ranks must send at least, so that it can be compared with the speed of a link whatever the number of ranks. GB are 1e9
bytes.
"""

from __future__ import annotations

import argparse
import re
from dataclasses import dataclass
from typing import Sequence

from gpu_runner_inside.benchmark.measure import median

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


@dataclass(frozen=True)
class Timed:
    """One rank's times for one message size.

    Attributes:
        bytes: of the message on each rank. iterations: allreduces in a round, one after another.
        rounds_s: seconds of each round.
    """

    bytes: int
    iterations: int
    rounds_s: tuple[float, ...]


@dataclass(frozen=True)
class Row:
    """One message size.

    Attributes:
        time_s: of one allreduce: the mean over ranks in each round, of which the median.
        fastest_s, slowest_s: of the rounds.
        algorithm_gb_s, bus_gb_s: bandwidths, 1e9 bytes a second.
    """

    bytes: int
    time_s: float
    fastest_s: float
    slowest_s: float
    algorithm_gb_s: float
    bus_gb_s: float


def byte_count(text: str) -> int:
    """``8``, ``64K``, ``128M``, ``1G``: a number of bytes, with powers of 1024.

    Raises:
        argparse.ArgumentTypeError: it is none, or less than 4, the bytes of a float.
    """
    found = re.fullmatch(r"(\d+)([KMG]?)", text)
    if not found or int(found[1]) * _UNITS[found[2]] < 4:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of bytes from 4 on (8, 64K, 128M, 1G)")
    return int(found[1]) * _UNITS[found[2]]


def sizes(least: int, most: int) -> list[int]:
    """Message sizes in bytes from ``least`` to ``most``, doubled each time; whole floats."""
    found, size = [], least // 4 * 4
    while size <= most:
        found.append(size)
        size *= 2
    return found


def row(ranks: Sequence[Timed]) -> Row:
    """The figures of one message size from all ranks' times.

    Raises:
        ValueError: the ranks did not do the same.
    """
    first = ranks[0]
    if any((each.bytes, each.iterations, len(each.rounds_s)) != (first.bytes, first.iterations, len(first.rounds_s))
           for each in ranks):  # fmt: skip
        raise ValueError("the ranks did not time the same allreduces")
    means = [sum(round_s) / len(ranks) / first.iterations for round_s in zip(*(each.rounds_s for each in ranks))]
    time_s = median(means)
    algorithm = first.bytes / time_s / 1e9
    return Row(first.bytes, time_s, min(means), max(means), algorithm, algorithm * 2 * (len(ranks) - 1) / len(ranks))


def table(rows: Sequence[Row]) -> str:
    """For people: a line for each message size."""
    head = f"{'bytes':>12}  {'time us':>10}  {'(fastest to slowest round)':>27}  {'alg GB/s':>9}  {'bus GB/s':>9}"
    lines = [
        f"{each.bytes:12d}  {each.time_s * 1e6:10.1f}  {each.fastest_s * 1e6:12.1f} to {each.slowest_s * 1e6:11.1f}  "
        f"{each.algorithm_gb_s:9.3f}  {each.bus_gb_s:9.3f}"
        for each in rows
    ]
    return "\n".join([head, *lines])
