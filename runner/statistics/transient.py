"""Whether the start of a window differs from the rest, and whether it may be left out of the figure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Literal

from runner.statistics.precision import LEAST_GROUPS, long_run_deviation
from runner.statistics.series import clipped

LARGEST_CUT = 0.25  # of the window
_DETECTED_Z = 3.5  # false in less than 1 % of stationary series, by simulation
_PROLONGED_Z = 2.5
_MATERIAL = 0.002  # of the mean
_DECAY = 1.5  # its first half is at least so many times as far from the rest as its second half

Kind = Literal["none", "cut", "immaterial", "level"]


@dataclass(frozen=True)
class Transient:
    """What the start of the window is.

    Attributes:
        kind: ``none``; ``cut``: the first ``groups`` groups are left out of the figure; ``immaterial``: detected, but
            worth at most 0.2 % of the mean, so nothing is cut; ``level``: detected, but it is a change of level or
            does not end within a quarter of the window, so nothing is cut.
        groups: how many groups it takes.
        excess: how much slower they are than the rest (0.1: 10 %; below 0: faster).
        change: mean of all groups over mean of the kept ones, less one; 0.0 where nothing is cut.
    """

    kind: Kind
    groups: int = 0
    excess: float = 0.0
    change: float = 0.0


def transient(values: Sequence[float]) -> Transient:
    """The start of a window of group times. O(n) for n values.

    With K = n // 4 and s = long_run_deviation of the last three quarters, on clipped values: it is detected where
    |mean(first k) - mean(rest)| / (s sqrt(1/k + 1/(n-K))) reaches 3.5 for some k in 2..K, and prolonged while a
    further block reaches 2.5. Up to n // 10 groups any shape is cut; up to K groups only a decay.
    """
    n = len(values)
    if n < LEAST_GROUPS:
        return Transient("none")
    end = _detected_end(clipped(values), n // 4)
    if end == 0:
        return Transient("none")
    kept_mean = math.fsum(values[end:]) / (n - end)
    excess = math.fsum(values[:end]) / end / kept_mean - 1.0
    change = math.fsum(values) / n / kept_mean - 1.0
    if end > n // 10 and not _decays(values, end):
        return Transient("level", end, excess)
    if abs(change) <= _MATERIAL:
        return Transient("immaterial", end, excess)
    return Transient("cut", end, excess, change)


def _detected_end(values: Sequence[float], quarter: int) -> int:
    """After how many groups the start ends; 0 where none is detected."""
    n = len(values)
    rest = values[quarter:]
    rest_mean = math.fsum(rest) / len(rest)
    deviation = long_run_deviation([value - rest_mean for value in rest], 1) or 1e-12 * abs(rest_mean)
    end, limit = 0, _DETECTED_Z
    while end < quarter - 1:
        best, best_end, total = 0.0, 0, 0.0
        for k in range(1, quarter - end + 1):
            total += values[end + k - 1] - rest_mean
            z = abs(total / k) / (deviation * math.sqrt(1.0 / k + 1.0 / (n - quarter)))
            if k >= 2 and z > best:
                best, best_end = z, end + k
        if best < limit:
            break
        end, limit = best_end, _PROLONGED_Z
    return end


def _decays(values: Sequence[float], end: int) -> bool:
    quarter = len(values) // 4
    if end >= quarter - 1:
        return False
    base, half = median(values[quarter:]), end // 2
    first, second = median(values[:half]) - base, median(values[half:end]) - base
    return first * second >= 0.0 and abs(first) >= _DECAY * abs(second)
