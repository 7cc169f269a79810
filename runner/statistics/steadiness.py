"""Whether a window holds one level: no trend, no change of level, no drift above a margin.

Change of level: Csorgo and Horvath (1997), Limit Theorems in Change-Point Analysis; Andrews (1993), Econometrica 61,
821; residuals under the alternative keep its power (Crainiceanu and Vogelsang 2007, JSCS 77). Trend by ranks: Mann
(1945), Econometrica 13. Equivalence by intersection-union: Berger (1982), Technometrics 24.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from runner.statistics.precision import LEAST_GROUPS, batch_means, clipped, long_run_deviation, mean_error, slope

MARGIN = 0.01
_MONOTONE_SCORE = 26  # of 28: 0.04 % of independent series
_PLANNED = 0.6  # of the margin: where the largest contrast should lie, for a window that can show "steady"

SteadinessVerdict = Literal["steady", "not steady", "cannot tell"]


@dataclass(frozen=True)
class LevelShift:
    """After ``group`` groups the times are longer by ``size``, a share of the mean; ``low`` and ``high``: simultaneous
    99 % limits of it over all places.
    """

    group: int
    size: float
    low: float
    high: float


@dataclass(frozen=True)
class Steadiness:
    """Whether the window holds one level.

    Attributes:
        worst: the largest contrast that is possible at one-sided 95 %; ``steady`` means that it is below the margin.
        shift: the most significant change of level, shown whatever the verdict is; None if there is none at 1 %.
        groups_needed: where the verdict is "cannot tell": about how many groups "steady" would need with this noise.
            No more than there are: a change near the margin, not the noise, is in the way. Else 0.
    """

    verdict: SteadinessVerdict
    worst: float
    shift: LevelShift | None
    groups_needed: int = 0


def steadiness(values: Sequence[float]) -> Steadiness:
    """Whether trend, level shifts and drift of group times stay below MARGIN. O(n) for n of them.

    ``steady`` (one-sided 5 %): the trend, and the difference of means at 10, 20, ... 90 % of the window, stay below
    the margin by the error of ``mean_error``. ``not steady`` (about 1 % each): a significant level shift whose nearer
    limit exceeds the margin, a significant trend above it, or a monotone drift above it.
    """
    n = len(values)
    if n < LEAST_GROUPS:
        return Steadiness("cannot tell", math.inf, None, LEAST_GROUPS)
    mean, error = mean_error(values, 0.95)
    half = error / mean
    trend = slope(values)[0] / mean
    worst = max(abs(trend) + math.sqrt(12.0) * half, _worst_split(values, mean, half))
    shift = level_shift(values)
    moved = (
        _monotone_drift(values) / mean > MARGIN
        or _least_trend(values) / mean > MARGIN
        or (shift is not None and min(abs(shift.low), abs(shift.high)) > MARGIN)
    )
    verdict: SteadinessVerdict = "not steady" if moved else "steady" if worst < MARGIN else "cannot tell"
    needed = math.ceil(n * (math.sqrt(12.0) * half / (_PLANNED * MARGIN)) ** 2) if verdict == "cannot tell" else 0
    return Steadiness(verdict, worst, shift, needed)


def level_shift(values: Sequence[float]) -> LevelShift | None:
    """The most significant change of level, None if there is none at 1 %. O(n) for n >= LEAST_GROUPS group times.

    On clipped values, over all places k that leave max(3, n // 20) groups on each side; the critical value 3.5 + 30/n
    was simulated over independent, autocorrelated, lognormal and spiky series.
    """
    n = len(values)
    held, mean = clipped(values), math.fsum(values) / n
    place, size = _best_split(held)
    before = math.fsum(held[:place]) / place
    residuals = [value - before - (size if i >= place else 0.0) for i, value in enumerate(held)]
    half = (3.5 + 30.0 / n) * long_run_deviation(residuals, 2) * math.sqrt(1.0 / place + 1.0 / (n - place))
    if abs(size) <= half:
        return None
    return LevelShift(place, size / mean, (size - half) / mean, (size + half) / mean)


def _best_split(values: Sequence[float]) -> tuple[int, float]:
    """The place of the largest standardised difference of means, and that difference (after less before)."""
    n = len(values)
    least = max(3, n // 20)
    total, before = math.fsum(values), 0.0
    best, place, size = -1.0, least, 0.0
    for k in range(1, n - least + 1):
        before += values[k - 1]
        if k < least:
            continue
        step = (total - before) / (n - k) - before / k
        score = abs(step) / math.sqrt(1.0 / k + 1.0 / (n - k))
        if score > best:
            best, place, size = score, k, step
    return place, size


def _worst_split(values: Sequence[float], mean: float, half: float) -> float:
    """The largest difference of means at 10, 20, ... 90 % of the window that ``half`` (of the mean) allows."""
    n = len(values)
    total, before, place, worst = math.fsum(values), 0.0, 0, 0.0
    for tenth in range(1, 10):
        k = n * tenth // 10
        before += math.fsum(values[place:k])
        place = k
        step = ((total - before) / (n - k) - before / k) / mean
        worst = max(worst, abs(step) + half / math.sqrt(k / n * (1.0 - k / n)))
    return worst


def _least_trend(values: Sequence[float]) -> float:
    """The smallest slope times the window that the noise allows, in the unit of the values; may be below 0."""
    trend, residuals = slope(clipped(values))
    n = len(values)
    return abs(trend) - (2.5 + 10.0 / n) * long_run_deviation(residuals, 2) * math.sqrt(12.0 / n)


def _monotone_drift(values: Sequence[float]) -> float:
    """Difference of the halves' means where the means of 8 batches rise or fall nearly without a break, else 0.0.

    It detects slow decays, whose residuals neither a line nor a step whitens.
    """
    means = batch_means(values, 8)
    score = sum((means[j] > means[i]) - (means[j] < means[i]) for i in range(8) for j in range(i + 1, 8))
    return abs(math.fsum(means[:4]) - math.fsum(means[4:])) / 4.0 if abs(score) >= _MONOTONE_SCORE else 0.0
