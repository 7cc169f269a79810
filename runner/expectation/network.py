"""How long the slowest of several ranks takes. Pure."""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass
from functools import cache, cached_property

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
