"""Seconds of an allreduce: by a model of the network, or by a curve measured with nccl-tests."""

from __future__ import annotations

import csv
import io
import math
import re
from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache, cached_property
from statistics import median_low

from runner.core.errors import UsageError
from runner.core.text import counted

_STEPS, _REACH = 2000, 10.0


@cache
def expected_maximum(ranks: int) -> float:
    """The expected maximum of so many standard normal values: 0 for one, 1.42 for 8, 1.77 for 16, 3.04 for 512.

    The integral of 1 - F(x)^N over x >= 0 less that of F(x)^N over x < 0, by the trapezoidal rule.
    """
    if ranks < 2:
        return 0.0
    width = _REACH / _STEPS
    total = 0.0
    for step in range(_STEPS + 1):
        x = step * width
        tail = 0.5 * math.erfc(x / math.sqrt(2.0))  # 1 - F(x), and F(-x)
        above = -math.expm1(ranks * math.log1p(-tail))
        below = math.exp(ranks * math.log(tail)) if tail > 0.0 else 0.0
        total += (above - below) * (0.5 if step in (0, _STEPS) else 1.0)
    return total * width


Times = tuple[tuple[float, float], ...]  # (bytes, seconds)
_LEAST = 1 << 20  # bytes: smaller messages take other protocols, and tell nothing of the bandwidth


def too_small(times: Times) -> str:
    """Why these times tell nothing of the bandwidth; empty where they do."""
    largest = max(size for size, _ in times)
    return f"its largest allreduce is of {largest:.0f} bytes, and tells nothing of 1 MiB or more" * (largest < _LEAST)


@dataclass(frozen=True)
class Curve:
    """Times of allreduces on so many ranks.

    Attributes:
        times: (bytes, seconds), by size, each size once; all above 0.
        nodes: of the ranks; None where that is unknown.
        with_coordination: the times hold Horovod's coordination.
        source: what measured it.
    """

    ranks: int
    nodes: int | None
    times: Times
    source: str
    with_coordination: bool = False

    @cached_property
    def line(self) -> tuple[float, float]:
        """(L in seconds, B in bytes per second): least squares of the relative error over messages of 1 MiB or more.

        With fewer than two of those, over all messages; with one message all of its time is bandwidth.
        """
        large = [each for each in self.times if each[0] >= _LEAST]
        points = large if len(large) > 1 else list(self.times)
        factor = 2 * (self.ranks - 1) / self.ranks
        if len(points) == 1:
            ((size, seconds),) = points
            return 0.0, factor * size / seconds
        weights = [1 / seconds**2 for _, seconds in points]
        total = sum(weights)
        middle = sum(w * size for w, (size, _) in zip(weights, points, strict=True)) / total
        mean = sum(w * seconds for w, (_, seconds) in zip(weights, points, strict=True)) / total
        spread = sum(w * (size - middle) ** 2 for w, (size, _) in zip(weights, points, strict=True))
        slope = sum(w * (s - middle) * (t - mean) for w, (s, t) in zip(weights, points, strict=True)) / spread
        if slope <= 0.0:  # larger messages took no longer: only the largest tells of the bandwidth
            size, seconds = points[-1]
            return 0.0, factor * size / seconds
        return max(0.0, mean - slope * middle), factor / slope

    def allreduce_s(self, size: float) -> float:
        """How long an allreduce of so many bytes takes on these ranks, seconds. Never less for more bytes than the
        measured times allow.
        """
        latency, bandwidth = self.line
        factor = 2 * (self.ranks - 1) / self.ranks
        sizes = [each[0] for each in self.times]
        if size <= sizes[0]:
            return min(self.times[0][1], latency + factor * size / bandwidth)
        if size >= sizes[-1]:
            return self.times[-1][1] + factor * (size - sizes[-1]) / bandwidth
        place = bisect_left(sizes, size)
        (before, early), (after, late) = self.times[place - 1], self.times[place]
        part = math.log(size / before) / math.log(after / before)
        return early * math.exp(part * math.log(late / early))


@dataclass(frozen=True)
class Network:
    """What carries the data of one job.

    Attributes:
        ranks, nodes: of the job. per_node: the most ranks of a node.
        inside_b_s, between_b_s: bus bandwidth inside a node, and between nodes, bytes per second.
        hop_inside_s, hop_between_s: of one message, seconds. start_s: of an allreduce, seconds.
        tree_share: bus bandwidth of a tree over that of a ring.
    """

    ranks: int
    nodes: int
    per_node: int
    inside_b_s: float
    between_b_s: float
    hop_inside_s: float
    hop_between_s: float
    start_s: float
    tree_share: float

    @property
    def bus_b_s(self) -> float:
        """The bus bandwidth of a ring through all ranks: that of its slowest part."""
        if self.nodes == 1:
            return self.inside_b_s
        return min(self.inside_b_s, self.between_b_s) if self.per_node > 1 else self.between_b_s

    def latency_s(self) -> float:
        """How long an allreduce of nothing takes."""
        return self.allreduce_s(0.0)

    def allreduce_s(self, size: float) -> float:
        """How long an allreduce of so many bytes takes, seconds."""
        if self.ranks < 2:
            return 0.0
        hops, between = 2 * (self.ranks - 1), 2 * (self.nodes - 1)
        carried = 2 * (self.ranks - 1) / self.ranks * size / self.bus_b_s
        ring = self.start_s + (hops - between) * self.hop_inside_s + between * self.hop_between_s + carried
        depth = (self.per_node - 1) * self.hop_inside_s + math.log2(self.nodes) * self.hop_between_s
        return min(ring, self.start_s + 2 * depth + carried / self.tree_share)


_PREFIX = re.compile(r"\s*(?:\[\d+(?:,\d+)?\](?:<\w+>)?:?|\d+:)?\s*")
_RANK = re.compile(r"#?\s*Rank\s+(\d+)\s.*?\bon\s+(\S+)\s+device\b")
_ROW = re.compile(r"\d+\s+\d+\s+\S+\s+\S+\s+\S+\s+\S+\s+\S+")
_TEST = re.compile(r"#\s*Collective test starting:\s*(\w+)")
_WRONG = re.compile(r"#\s*Out of bounds values\s*:\s*([0-9]{1,18})\b")
_SIZE_NAMES = ("size", "sizeb", "sizebytes", "bytes", "messagesize", "messagesizebytes")
_TIME_NAMES = (
    *("time", "timeus", "timeoop", "timeoopus", "outofplacetime", "outofplacetimeus"),
    *("outplacetime", "outplacetimeus", "tusout"),
)
_RANK_NAMES = ("ngpu", "ngpus", "gpus", "ranks", "nranks")
_ALGORITHM_NAMES = ("algbw", "algbwgbs", "algbwoop", "outofplacealgbw", "outplacealgbwgbs", "algbwoutgbs")
_BUS_NAMES = ("busbw", "busbwgbs", "busbwoop", "outofplacebusbw", "outplacebusbwgbs", "busbwoutgbs")
_WRONG_NAMES = ("wrong", "wrongoop", "outofplacewrong", "wrongout")
_SAME = 0.02  # bandwidths have two decimals
_FIX = "give what all_reduce_perf printed, whole, or a CSV with the columns size (bytes) and time (us)"


@dataclass(frozen=True)
class _Row:
    size: float
    seconds: float
    algorithm_gb_s: float | None
    bus_gb_s: float | None
    where: str


def parse(text: str, name: str, ranks: int | None = None, nodes: int | None = None) -> Curve:
    """The curve in a file's text.

    Args:
        name: of the file, for messages. ranks, nodes: where the user gives them; the file's own must agree.

    Raises:
        UsageError: it has no times, they are not of an allreduce on so many ranks, or the number of ranks is unknown.
    """
    lines = [_without_prefix(line) for line in text.splitlines()]
    tests = [found[1] for line in lines if (found := _TEST.match(line))]
    if other := next((test for test in tests if not test.startswith("all_reduce_perf")), None):
        raise UsageError(f"this is the output of {other}", where=name, fix=_FIX)
    hosts = {int(found[1]): found[2] for line in lines if (found := _RANK.match(line))}
    if header := _csv_header(lines):
        rows, listed = _csv_rows(lines, header, name)
    else:
        rows, listed = list(_text_rows(lines, name)), len(hosts) or None
    if not rows:
        raise UsageError("no line with the time of an allreduce", where=name, fix=_FIX)
    if ranks is not None and listed is not None and ranks != listed:
        raise UsageError(
            f"the file is of {counted(listed, 'rank')}, not {ranks}", where=name, fix="leave --nccl-gpus out"
        )
    count = ranks or listed
    if count is None:
        raise UsageError("the file does not list its ranks", where=name, fix="give their number: --nccl-gpus N")
    if count < 2:
        raise UsageError("an allreduce of one rank tells nothing of a network", where=name, fix="measure two or more")
    for row in rows:
        _check_factor(row, count)
    _check_sums(lines, name)
    by_size: dict[float, list[float]] = {}
    for row in rows:
        by_size.setdefault(row.size, []).append(row.seconds)
    times = tuple((size, median_low(seconds)) for size, seconds in sorted(by_size.items()))
    if reason := too_small(times):
        raise UsageError(reason, where=name, fix="measure larger ones: all_reduce_perf -b 8 -e 1G -f 2")
    return Curve(count, nodes or len(set(hosts.values())) or None, times, f"nccl-tests, {name}")


def _check_sums(lines: Iterable[str], name: str) -> None:
    """The line at the end counts wrong sums in place, too."""
    for number, line in enumerate(lines, start=1):
        if (found := _WRONG.match(line)) and int(found[1]):
            fix = "find out why first: times of wrong sums mean nothing"
            raise UsageError(f"{int(found[1])} sums were wrong", where=f"{name}:{number}", fix=fix)


def _without_prefix(line: str) -> str:
    stripped = line.strip()
    return stripped if _ROW.match(stripped) else _PREFIX.sub("", stripped, count=1)


def _text_rows(lines: Iterable[str], name: str) -> Iterable[_Row]:
    for number, line in enumerate(lines, start=1):
        if not _ROW.match(line):
            continue
        words, where = line.split(), f"{name}:{number}"
        first, row = next(((first, row) for first in (5, 4) if (row := _row_of(words, first, where))), (0, None))
        if row is None:
            raise UsageError(f"the numbers of this line do not fit each other: {line[:100]}", where=where, fix=_FIX)
        if words[3] == "none" or (first == 5 and words[4] != "-1"):
            raise UsageError("this line is of no allreduce: it has a root, or nothing is summed", where=where, fix=_FIX)
        _check_wrong(words[first + 3] if len(words) > first + 3 else "0", row.size, where)
        if row.size > 0:
            yield row


def _check_wrong(count: str, size: float, where: str) -> None:
    if re.fullmatch(r"0*[1-9]\d*", count.strip(), re.ASCII):
        fix = "find out why first: times of wrong sums mean nothing"
        raise UsageError(f"{count.strip()} sums were wrong at {size:.0f} bytes", where=where, fix=fix)


def _row_of(words: list[str], first: int, where: str) -> _Row | None:
    """The row whose time is the word of that place; None if its bandwidth is not bytes over time."""
    numbers = [value for word in (words[0], *words[first : first + 3]) if (value := _number(word)) is not None]
    if len(numbers) < 4:
        return None
    size, time, algorithm, bus = numbers
    if size <= 0:
        return _Row(0.0, 0.0, None, None, where)
    if time <= 0 or not _fits(size, time, algorithm):
        return None
    return _Row(size, time * 1e-6, algorithm, bus, where)


def _fits(size: float, time_us: float, gb_s: float) -> bool:
    """Whether a bandwidth with two decimals is bytes over time."""
    return abs(size / time_us / 1e3 - gb_s) <= 0.006 + _SAME * size / time_us / 1e3


def _csv_header(lines: list[str]) -> list[str] | None:
    """The plain names of a CSV's columns; None where it is none."""
    first = next((line for line in lines if line.strip() and not line.startswith("#")), "")
    if "," not in first:
        return None
    return [_plain(cell) for cell in next(csv.reader([first]))]


def _csv_rows(lines: list[str], header: list[str], name: str) -> tuple[list[_Row], int | None]:
    size, time = _column(header, _SIZE_NAMES), _column(header, _TIME_NAMES)
    missing = [what for what, place in (("size", size), ("time", time)) if place is None]
    if size is None or time is None:
        shown = ", ".join(header)[:200]
        raise UsageError(f"no column {' and no column '.join(missing)} among: {shown}", where=name, fix=_FIX)
    ranks, algorithm, bus = (_column(header, names) for names in (_RANK_NAMES, _ALGORITHM_NAMES, _BUS_NAMES))
    wrong = _column(header, _WRONG_NAMES)
    rows: list[_Row] = []
    seen: set[float] = set()
    kept = [(number, line) for number, line in enumerate(lines, start=1) if line.strip() and not line.startswith("#")]
    try:
        tables = list(csv.reader(io.StringIO("\n".join(line for _, line in kept[1:])), strict=True))
    except csv.Error as error:
        raise UsageError(f"no CSV: {error}", where=name, fix=_FIX) from None
    for (number, _), cells in zip(kept[1:], tables, strict=False):
        where = f"{name}:{number}"
        values = [
            _number(cells[place]) if place is not None and place < len(cells) else None
            for place in (size, time, algorithm, bus, ranks)
        ]
        if values[0] is None or values[1] is None or values[0] < 0 or values[1] <= 0:
            raise UsageError(f"no size and time: {','.join(cells)[:100]}", where=where, fix=_FIX)
        if values[2] is not None and values[0] > 0 and not _fits(values[0], values[1], values[2]):
            what = f"{values[2]:g} GB/s is not {values[0]:.0f} bytes in {values[1]:g} us"
            raise UsageError(what, where=where, fix=_FIX)
        if wrong is not None and wrong < len(cells):
            _check_wrong(cells[wrong], values[0], where)
        if values[4] is not None:
            seen.add(values[4])
        if values[0] > 0:
            rows.append(_Row(values[0], values[1] * 1e-6, values[2], values[3], where))
    if len(seen) > 1:
        raise UsageError(
            "the file holds several numbers of ranks", where=name, fix="give a file of one number of ranks"
        )
    return rows, int(seen.pop()) if seen else None


def _check_factor(row: _Row, ranks: int) -> None:
    """The bus bandwidth of an allreduce is 2 (N - 1) / N times its algorithm bandwidth."""
    if not row.algorithm_gb_s or not row.bus_gb_s or row.algorithm_gb_s < 1.0:
        return
    factor, expected = row.bus_gb_s / row.algorithm_gb_s, 2 * (ranks - 1) / ranks
    if abs(factor - expected) > _SAME * expected:
        raise UsageError(
            f"bus bandwidth is {factor:.3f} times algorithm bandwidth, and {expected:.3f} times in an allreduce on "
            f"{counted(ranks, 'rank')}",
            where=row.where,
            fix="give the output of all_reduce_perf, and the right number of ranks (--nccl-gpus N)",
        )


def _column(header: list[str], names: Iterable[str]) -> int | None:
    return next((header.index(name) for name in names if name in header), None)


def _plain(cell: str) -> str:
    return "".join(each for each in cell.lower() if each.isascii() and each.isalnum())


def _number(word: str) -> float | None:
    """A finite number in plain ASCII; None for anything else."""
    if not re.fullmatch(r"[-+]?\d+(\.\d*)?([eE][-+]?\d{1,3})?", word.strip(), re.ASCII) or len(word) > 40:
        return None
    value = float(word)
    return value if math.isfinite(value) else None
