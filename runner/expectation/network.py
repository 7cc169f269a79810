"""Seconds of an allreduce: by a model of the network, or by a curve measured with nccl-tests."""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import pairwise
from statistics import median_low

from runner.core.errors import UsageError
from runner.core.text import counted


@cache
def expected_maximum(ranks: int) -> float:
    """The expected maximum of so many standard normal values: 0 for one, 1.42 for 8, 1.77 for 16, 3.04 for 512.

    The integral of 1 - F(x)^N over x >= 0 less that of F(x)^N over x < 0, by the trapezoidal rule.
    """
    if ranks < 2:
        return 0.0
    steps, reach = 2000, 10.0
    width, total = reach / steps, 0.0
    for step in range(steps + 1):
        x = step * width
        tail = 0.5 * math.erfc(x / math.sqrt(2.0))  # 1 - F(x), and F(-x)
        above = -math.expm1(ranks * math.log1p(-tail))
        below = math.exp(ranks * math.log(tail)) if tail > 0.0 else 0.0
        total += (above - below) * (0.5 if step in (0, steps) else 1.0)
    return total * width


Times = tuple[tuple[float, float], ...]  # (bytes, seconds)
_LEAST = 1 << 20  # bytes: smaller messages take other protocols, and tell nothing of the bandwidth


def too_small(times: Times) -> str:
    """Why these times tell nothing of the bandwidth; empty where they do."""
    largest = max(size for size, _ in times)
    return f"its largest allreduce is of {largest:.0f} bytes, and tells nothing of 1 MiB or more" * (largest < _LEAST)


@dataclass(frozen=True)
class Curve:
    """Times of allreduces on two ranks or more: (bytes, seconds), by size, each size once; all above 0.

    Attributes:
        with_coordination: the times hold Horovod's coordination. source: what measured it.
    """

    ranks: int
    nodes: int | None  # None: unknown
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
        (least, first_s), (most, last_s) = self.times[0], self.times[-1]
        if size <= least:
            return min(first_s, latency + factor * size / bandwidth)
        if size >= most:
            return last_s + factor * (size - most) / bandwidth
        (before, early), (after, late) = next(pair for pair in pairwise(self.times) if size <= pair[1][0])
        part = math.log(size / before) / math.log(after / before)
        return early * math.exp(part * math.log(late / early))


@dataclass(frozen=True)
class Network:
    """What carries the data of one job of two ranks or more.

    Attributes:
        per_node: the most ranks of a node.
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

    def allreduce_s(self, size: float) -> float:
        """How long an allreduce of so many bytes takes, seconds."""
        bus_b_s = self.inside_b_s  # of a ring through all ranks: that of its slowest part
        if self.nodes > 1:
            bus_b_s = min(self.inside_b_s, self.between_b_s) if self.per_node > 1 else self.between_b_s
        hops, between = 2 * (self.ranks - 1), 2 * (self.nodes - 1)
        carried = 2 * (self.ranks - 1) / self.ranks * size / bus_b_s
        ring = self.start_s + (hops - between) * self.hop_inside_s + between * self.hop_between_s + carried
        depth = (self.per_node - 1) * self.hop_inside_s + math.log2(self.nodes) * self.hop_between_s
        return min(ring, self.start_s + 2 * depth + carried / self.tree_share)


_PREFIX = re.compile(r"\s*(?:\[\d+(?:,\d+)?\](?:<\w+>)?:?|\d+:)?\s*")
_RANK = re.compile(r"#?\s*Rank\s+(\d+)\s.*?\bon\s+(\S+)\s+device\b")
_ROW = re.compile(r"\d+\s+\d+\s+\S+\s+\S+\s+\S+\s+\S+\s+\S+\s+\S+")
_TEST = re.compile(r"#\s*Collective test starting:\s*(\w+)")
_WRONG = re.compile(r"#\s*Out of bounds values\s*:\s*([0-9]{1,18})\b")
_COLUMNS = {
    "size": ("size", "sizeb", "sizebytes", "bytes", "messagesize", "messagesizebytes"),
    "time": (
        *("time", "timeus", "timeoop", "timeoopus", "outofplacetime", "outofplacetimeus"),
        *("outplacetime", "outplacetimeus", "tusout"),
    ),
    "ranks": ("ngpu", "ngpus", "gpus", "ranks", "nranks"),
    "algorithm": ("algbw", "algbwgbs", "algbwoop", "outofplacealgbw", "outplacealgbwgbs", "algbwoutgbs"),
    "bus": ("busbw", "busbwgbs", "busbwoop", "outofplacebusbw", "outplacebusbwgbs", "busbwoutgbs"),
    "wrong": ("wrong", "wrongoop", "outofplacewrong", "wrongout"),
}
_SAME = 0.02  # bandwidths have two decimals
_FIX = "give what all_reduce_perf printed, whole, or a CSV with the columns size (bytes) and time (us)"


@dataclass(frozen=True)
class _Row:
    size: float
    seconds: float
    algorithm_gb_s: float | None
    bus_gb_s: float | None
    where: str


def parse(text: str, name: str, ranks: int | None = None) -> Curve:
    """The curve in a file's text; ``name`` is that of the file, and ``ranks`` what the user says of it.

    Raises:
        UsageError: it has no times, they are not of an allreduce on so many ranks, or the number of ranks is unknown.
    """
    lines = list(enumerate(map(_without_prefix, text.splitlines()), start=1))
    tests = [match[1] for _, line in lines if (match := _TEST.match(line))]
    if other := next((test for test in tests if not test.startswith("all_reduce_perf")), None):
        raise UsageError(f"this is the output of {other}", where=name, fix=_FIX)
    hosts = {int(match[1]): match[2] for _, line in lines if (match := _RANK.match(line))}
    table = [(number, line) for number, line in lines if line.strip() and not line.startswith("#")]
    if table and "," in table[0][1]:
        rows, listed = _csv_rows(table, name)
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
    for number, line in lines:  # the line at the end counts wrong sums in place, too
        if match := _WRONG.match(line):
            _check_wrong(str(int(match[1])), "", f"{name}:{number}")
    by_size: dict[float, list[float]] = {}
    for row in rows:
        by_size.setdefault(row.size, []).append(row.seconds)
    times = tuple((size, median_low(seconds)) for size, seconds in sorted(by_size.items()))
    if reason := too_small(times):
        raise UsageError(reason, where=name, fix="measure larger ones: all_reduce_perf -b 8 -e 1G -f 2")
    return Curve(count, len(set(hosts.values())) or None, times, f"nccl-tests, {name}")


def _without_prefix(line: str) -> str:
    stripped = line.strip()
    return stripped if _ROW.match(stripped) else _PREFIX.sub("", stripped, count=1)


def _text_rows(lines: Iterable[tuple[int, str]], name: str) -> Iterator[_Row]:
    for number, line in lines:
        if not _ROW.match(line):
            continue
        words, where = line.split(), f"{name}:{number}"
        first, row = next(((first, row) for first in (5, 4) if (row := _row_of(words, first, where))), (0, None))
        if row is None:
            raise UsageError(f"the numbers of this line do not fit each other: {line[:100]}", where=where, fix=_FIX)
        if words[3] == "none" or (first == 5 and words[4] != "-1"):
            raise UsageError("this line is of no allreduce: it has a root, or nothing is summed", where=where, fix=_FIX)
        _check_wrong(words[first + 3] if len(words) > first + 3 else "0", f" at {row.size:.0f} bytes", where)
        if row.size > 0:
            yield row


def _row_of(words: list[str], first: int, where: str) -> _Row | None:
    """The row whose time is the word of that place; None if its bandwidth is not bytes over time."""
    numbers = [value for word in (words[0], *words[first : first + 3]) if (value := _number(word)) is not None]
    if len(numbers) < 4:
        return None
    size, time_us, algorithm, bus = numbers
    if size <= 0:
        return _Row(0.0, 0.0, None, None, where)
    if time_us <= 0 or not _fits(size, time_us, algorithm):
        return None
    return _Row(size, time_us * 1e-6, algorithm, bus, where)


def _csv_rows(table: list[tuple[int, str]], name: str) -> tuple[list[_Row], int | None]:
    header = [re.sub("[^a-z0-9]", "", cell.lower()) for cell in next(csv.reader([table[0][1]]))]
    known = {kind: [header.index(each) for each in names if each in header] for kind, names in _COLUMNS.items()}
    places = {kind: indexes[0] for kind, indexes in known.items() if indexes}
    if missing := [kind for kind in ("size", "time") if kind not in places]:
        shown = ", ".join(header)[:200]
        raise UsageError(f"no column {' and no column '.join(missing)} among: {shown}", where=name, fix=_FIX)
    try:
        rows_of_cells = list(csv.reader([f"{line}\n" for _, line in table[1:]], strict=True))
    except csv.Error as error:
        raise UsageError(f"no CSV: {error}", where=name, fix=_FIX) from None
    rows: list[_Row] = []
    ranks: set[float] = set()
    for (number, _), cells in zip(table[1:], rows_of_cells, strict=False):
        where = f"{name}:{number}"
        words = {kind: cells[place] for kind, place in places.items() if place < len(cells)}
        numbers = {kind: value for kind, word in words.items() if (value := _number(word)) is not None}
        size, time_us, algorithm = numbers.get("size", -1.0), numbers.get("time", 0.0), numbers.get("algorithm")
        if size < 0 or time_us <= 0:
            raise UsageError(f"no size and time: {','.join(cells)[:100]}", where=where, fix=_FIX)
        if algorithm is not None and size > 0 and not _fits(size, time_us, algorithm):
            what = f"{algorithm:g} GB/s is not {size:.0f} bytes in {time_us:g} us"
            raise UsageError(what, where=where, fix=_FIX)
        _check_wrong(words.get("wrong", ""), f" at {size:.0f} bytes", where)
        ranks |= {numbers["ranks"]} if "ranks" in numbers else set()
        if size > 0:
            rows.append(_Row(size, time_us * 1e-6, algorithm, numbers.get("bus"), where))
    if len(ranks) > 1:
        fix = "give a file of one number of ranks"
        raise UsageError("the file holds several numbers of ranks", where=name, fix=fix)
    return rows, int(ranks.pop()) if ranks else None


def _fits(size: float, time_us: float, gb_s: float) -> bool:
    """Whether a bandwidth with two decimals is bytes over time."""
    return abs(size / time_us / 1e3 - gb_s) <= 0.006 + _SAME * size / time_us / 1e3


def _check_wrong(count: str, at: str, where: str) -> None:
    if re.fullmatch(r"0*[1-9]\d*", count.strip(), re.ASCII):
        fix = "find out why first: times of wrong sums mean nothing"
        raise UsageError(f"{count.strip()} sums were wrong{at}", where=where, fix=fix)


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


def _number(word: str) -> float | None:
    """A finite number in plain ASCII; None for anything else."""
    if not re.fullmatch(r"[-+]?\d+(\.\d*)?([eE][-+]?\d{1,3})?", word.strip(), re.ASCII) or len(word) > 40:
        return None
    value = float(word)
    return value if math.isfinite(value) else None
