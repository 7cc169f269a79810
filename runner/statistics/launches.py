"""What several launches of one thing give: a rate, its spread, an efficiency, and how many a claim needs. Pure.

A launch is one independent start of the program and counts as one rate (samples per second); what happens within it is
not used. Intervals are of 95 %, by Student's t on logarithms. Sources: Welch (1947), Biometrika 34;
Satterthwaite (1946), Biometrics 2.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from statistics import stdev

from runner.model.study import Estimate
from runner.statistics.comparison import LEAST_LAUNCHES
from runner.statistics.student_t import t_quantile

CHANGES = (0.01, 0.02, 0.05)  # for which the number of launches is shown
MOST_LAUNCHES = 10_000
_POWER = 0.8


def mean_rate(rates: Sequence[float]) -> Estimate:
    """The rate of a launch, as the geometric mean over launches; no interval below two.

    Raises:
        ValueError: no rate, or one that is not above 0.
    """
    logs = _logs(rates)
    return ratio(math.fsum(logs) / len(logs), *_error(logs))


def spread(rates: Sequence[float]) -> float | None:
    """Standard deviation between launches, as a share of their mean; None below two."""
    return stdev(_logs(rates)) if len(rates) > 1 else None


def efficiency(rates: Sequence[float], base: Sequence[float], *, rounds: bool) -> Estimate:
    """How much of the base's rate per GPU is left.

    Args:
        rates, base: per GPU, of each launch. rounds: launch j of both ran in one round of one allocation, so that what
            a round shares is in both; else the two are independent (Welch).

    Raises:
        ValueError: no rate, one that is not above 0, or rounds that are not complete.
    """
    upper, lower = _logs(rates), _logs(base)
    if rounds:
        return mean_rate([math.exp(one - other) for one, other in zip(upper, lower, strict=True)])
    change = math.fsum(upper) / len(upper) - math.fsum(lower) / len(lower)
    errors = [_error(upper), _error(lower)]
    if any(math.isinf(error) for error, _ in errors):
        return Estimate(math.exp(change))
    squares = [error * error for error, _ in errors]
    return ratio(change, math.sqrt(math.fsum(squares)), satterthwaite(squares, [freedom for _, freedom in errors]))


def launches_needed(change: float, deviation: float) -> int:
    """Launches of each of two sides, in alternation, that find a true change with 80 % power at 5 %.

    Args:
        change: of the rate, a share. deviation: of one launch, a share.

    Returns:
        MOST_LAUNCHES where fewer are not enough.

    Raises:
        ValueError: either is not above 0.
    """
    if change <= 0.0 or deviation < 0.0:
        raise ValueError("a change must be above 0, a deviation not below it")
    if deviation == 0.0:
        return LEAST_LAUNCHES
    size = math.log1p(change) / deviation

    def are_enough(launches: int) -> bool:
        freedom = 2 * launches - 3
        return size * math.sqrt(launches / 2.0) >= t_quantile(0.975, freedom) + t_quantile(_POWER, freedom)

    counts = range(LEAST_LAUNCHES, MOST_LAUNCHES)  # more launches are never worse
    return LEAST_LAUNCHES + bisect_left(counts, True, key=are_enough)


def needed(deviation: float | None) -> dict[str, int]:
    """``launches_needed`` for changes of 1, 2 and 5 %, by ``0.01`` and so on; without those that MOST_LAUNCHES do not
    find, and empty where the spread is unknown.
    """
    if deviation is None:
        return {}
    counts = {f"{change:g}": launches_needed(change, deviation) for change in CHANGES}
    return {change: count for change, count in counts.items() if count < MOST_LAUNCHES}


def ratio(log: float, error: float, freedom: float) -> Estimate:
    """The exponential of an estimate and of its limits; no limits where the error is infinite."""
    if math.isinf(error):
        return Estimate(math.exp(log))
    half = t_quantile(0.975, freedom) * error
    return Estimate(math.exp(log), math.exp(log - half), math.exp(log + half))


def satterthwaite(squares: Sequence[float], freedoms: Sequence[float]) -> float:
    """Degrees of freedom of a sum of independent variances."""
    below = math.fsum(square * square / freedom for square, freedom in zip(squares, freedoms, strict=True))
    return math.fsum(squares) ** 2 / below if below > 0.0 else min(freedoms)


def _logs(rates: Sequence[float]) -> list[float]:
    if not rates or not all(math.isfinite(rate) and rate > 0.0 for rate in rates):
        raise ValueError("rates must be above 0, and at least one")
    return [math.log(rate) for rate in rates]


def _error(logs: Sequence[float]) -> tuple[float, float]:
    """Standard error of the mean and its degrees of freedom; infinite below two launches."""
    if len(logs) < 2:
        return math.inf, 1.0
    return stdev(logs) / math.sqrt(len(logs)), len(logs) - 1.0
