"""A measured curve: how long an allreduce took, by its size. Pure.

Between measured sizes times are interpolated, linearly in both logarithms. Beyond them, and for another number of
ranks, the curve's own bandwidth and latency extrapolate: T = L + 2 (N - 1) / N x S / B.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass
from functools import cached_property

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
