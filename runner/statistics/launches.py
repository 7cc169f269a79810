"""Rates of independent launches: their mean, their ratio, and two arms of alternating launches compared."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from operator import mul
from statistics import stdev

from runner.model.study import Estimate
from runner.statistics.precision import slope, t_quantile

LEAST_LAUNCHES = 3  # of each side, for a verdict
MARGIN = 0.02
_LARGEST_CONFOUNDING = 0.25  # share of the arm that the place in the order explains
_LARGEST_OF_FIRST = 1 / 3  # square of t that a slow first launch alone may give, as a share of the significant one


@dataclass(frozen=True)
class Comparison:
    """B against A.

    Attributes:
        verdict: ``faster`` or ``slower`` (the 95 % interval excludes 0), with ``, within the margin`` where it is
            small; ``equivalent`` (the 90 % interval lies within the margin); ``no verdict``, for which ``why`` is.
        is_balanced: the order keeps drift and a slow first launch out of the difference.
        change: estimate of B / A - 1; of the mean rates alone where there are too few launches, or the order is not
            balanced. low, high: its 95 % interval; None there. deviation: of the log rate of one launch; None where
            there are too few.
    """

    verdict: str
    change: float
    low: float | None = None
    high: float | None = None
    why: str = ""
    deviation: float | None = None
    is_balanced: bool = True


def compare(order: str, rates: Sequence[float], margin: float = MARGIN) -> Comparison:
    """Compare the launches of an order such as ``ABBAAB``, fixed before the first of them; ``rates``: one for each.

    Designed and validated by simulation, with 3 launches a side and more: log rate = level + arm + linear drift +
    error. A launch counts as one rate. However slow the first launch is, two equal sides get a false verdict in at most
    8 %, and sides that differ by just the margin are ``equivalent`` in at most 17 % (11 % of ABBA in turns): orders
    with more have no verdict (ABBBABAA: 30 % false). Sessions (AAABBBBBBAAA) hide no linear drift, but any other: with
    a step of 3 % between two launches, 30 % of them gave a verdict that was false. In ABBAAB a step after the third
    launch, whatever its size, is such a difference (50 % false), or hides one: rates that it explains get no verdict.

    Raises:
        ValueError: a rate that is not positive, another number of rates, or an arm without launches.
    """
    arms = (order.count("A"), order.count("B"))
    if not len(rates) == len(order) == sum(arms) or 0 in arms or min(rates) <= 0.0:
        raise ValueError("rates must be positive, one for each launch of A and B")
    logs = [math.log(rate) for rate in rates]
    sums = [math.fsum(log for letter, log in zip(order, logs, strict=True) if letter == arm) for arm in "AB"]
    change = math.expm1(sums[1] / arms[1] - sums[0] / arms[0])
    if min(arms) < LEAST_LAUNCHES:
        return Comparison("no verdict", change, why="fewer than 3 launches of a side: how much they differ is unknown")
    y = slope(logs)[1]
    x = slope([1.0 if letter == "B" else 0.0 for letter in order])[1]
    power = _product(x, x)
    estimate = _product(x, y) / power
    freedom = len(order) - 3.0
    deviation = math.sqrt(math.fsum((q - estimate * p) ** 2 for p, q in zip(x, y, strict=True)) / freedom)
    error = deviation / math.sqrt(power)
    significant = t_quantile(0.975, freedom)
    half, tight = significant * error, t_quantile(0.95, freedom) * error
    low, high, limit = estimate - half, estimate + half, math.log1p(margin)
    within = estimate - tight > -limit and estimate + tight < limit
    side = "faster" if low > 0.0 else "slower" if high < 0.0 else ""
    verdict = (f"{side}, within the margin" if side else "equivalent") if within else side or "no verdict"
    why = "the interval holds 0 and reaches beyond the margin" if verdict == "no verdict" else ""
    # Changes of the machine's level, by the launch before each, that alone could give this verdict.
    levels = {place: slope([1.0] * place + [0.0] * (len(order) - place))[1] for place in range(1, len(order))}
    share = _LARGEST_OF_FIRST * significant**2
    alike = {
        place: level
        for place, level in levels.items()
        if (in_arm := _explained(x, level)) > share * (_product(level, level) - in_arm) / freedom
    }
    turns = sum(one != next_one for one, next_one in pairwise(order))
    unbalanced = ""
    if turns < min(arms) or power < (1.0 - _LARGEST_CONFOUNDING) * arms[0] * arms[1] / len(order):
        unbalanced = (
            "the order is not interleaved, so what changed on the machine meanwhile may be all of the difference"
        )
    elif 1 in alike:
        better = ("ABBA" * max(arms))[: 2 * max(arms)]
        unbalanced = f"in the order {order} a slow first launch may be all of the difference; in {better} it is not"
    elif after := [
        place
        for place, level in alike.items()
        if (side and _explained(level, y) >= _explained(x, y))
        or (within and abs(_estimate_beside(level, x, y)) > limit)
    ]:
        unbalanced = f"a change on the machine after launch {after[0]} explains the rates as well: take more launches"
    if unbalanced:  # nor can a line tell drift from the arm there
        return Comparison("no verdict", change, why=unbalanced, deviation=deviation, is_balanced=False)
    return Comparison(verdict, math.expm1(estimate), math.expm1(low), math.expm1(high), why, deviation)


def _product(one: Sequence[float], other: Sequence[float]) -> float:
    return math.fsum(map(mul, one, other))


def _explained(cause: Sequence[float], values: Sequence[float]) -> float:
    """Of the sum of the squares of these values, both around a line, what goes with the cause."""
    return _product(cause, values) ** 2 / _product(cause, cause)


def _estimate_beside(other: Sequence[float], cause: Sequence[float], values: Sequence[float]) -> float:
    """The effect of a cause on these values, where another one may have its own."""
    share = _product(cause, other) / _product(other, other)
    own = [p - share * q for p, q in zip(cause, other, strict=True)]
    return _product(own, values) / _product(own, own)


CHANGES = (0.01, 0.02, 0.05)  # for which the number of launches is shown
MOST_LAUNCHES = 10_000


def mean_rate(rates: Sequence[float]) -> Estimate:
    """The rate of a launch, as the geometric mean over launches; no interval below two."""
    logs = _logs(rates)
    return ratio(math.fsum(logs) / len(logs), *_error(logs))


def spread(rates: Sequence[float]) -> float | None:
    """Standard deviation between launches, as a share of their mean; None below two."""
    return stdev(_logs(rates)) if len(rates) > 1 else None


def efficiency(rates: Sequence[float], base: Sequence[float], *, rounds: bool) -> Estimate:
    """How much of the base's rate per GPU is left, by the rates per GPU of launches. With ``rounds``, launch j of both
    ran in one round of one allocation, so that what a round shares is in both; else the two are independent (Welch).
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
    """Launches of each of two sides, in alternation, that find a true change with 80 % power at 5 %; MOST_LAUNCHES
    where fewer are not enough. Both are shares: ``change`` of the rate, above 0, ``deviation`` of one launch.
    """
    if deviation == 0.0:
        return LEAST_LAUNCHES
    size = math.log1p(change) / deviation

    def are_enough(launches: int) -> bool:
        freedom = 2 * launches - 3
        return size * math.sqrt(launches / 2.0) >= t_quantile(0.975, freedom) + t_quantile(0.8, freedom)

    counts = range(LEAST_LAUNCHES, MOST_LAUNCHES)  # more launches are never worse
    return LEAST_LAUNCHES + bisect_left(counts, True, key=are_enough)


def needed(deviation: float | None) -> dict[str, int]:
    """``launches_needed`` for CHANGES, by ``0.01`` and so on; without those that MOST_LAUNCHES do not find."""
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
