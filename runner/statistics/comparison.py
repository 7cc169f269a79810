"""Two arms of launches that ran in alternation, compared. Pure.

Designed and validated by simulation, with 3 launches a side and more: log rate = level + arm + linear drift + error.
A launch counts as one rate; what happens within it is not used. Sessions (AAABBBBBBAAA) hide no linear drift, but any
other: with a step of 3 % between two launches, 30 % of them gave a verdict that was false.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from runner.statistics.series import slope
from runner.statistics.student_t import t_quantile

LEAST_LAUNCHES = 3  # of each side, for a verdict
MARGIN = 0.02
_LARGEST_CONFOUNDING = 0.25  # share of the arm that the place in the order explains
_NOT_IN_TURNS = "the order is not interleaved, so what changed on the machine meanwhile may be all of the difference"


@dataclass(frozen=True)
class Comparison:
    """B against A; 0.02 means that B is 2 % faster.

    Attributes:
        verdict: ``faster`` or ``slower`` (the 95 % interval excludes 0), with ``, within the margin`` where it is
            small; ``equivalent`` (the 90 % interval lies within the margin); ``no verdict``.
        change: estimate of B / A - 1. low, high: its 95 % interval; None where there are too few launches.
        why: of ``no verdict``.
        deviation: of one launch, standard deviation of its log rate; None where there are too few.
    """

    verdict: str
    change: float
    low: float | None = None
    high: float | None = None
    why: str = ""
    deviation: float | None = None


def compare(order: str, rates: Sequence[float], margin: float = MARGIN) -> Comparison:
    """Compare the launches of an order such as ``ABBABA``.

    Args:
        order: the arm of each launch, as they ran; how many there are is fixed before the first.
        rates: one for each, in any unit.

    Raises:
        ValueError: a rate that is not positive, another number of rates, or an arm without launches.
    """
    arms = (order.count("A"), order.count("B"))
    if len(rates) != sum(arms) or len(order) != sum(arms) or 0 in arms or min(rates) <= 0.0:
        raise ValueError("rates must be positive, one for each launch of A and B")
    logs = [math.log(rate) for rate in rates]
    if min(arms) < LEAST_LAUNCHES:
        by_arm = {arm: [value for letter, value in zip(order, logs, strict=True) if letter == arm] for arm in "AB"}
        change = math.expm1(math.fsum(by_arm["B"]) / arms[1] - math.fsum(by_arm["A"]) / arms[0])
        return Comparison("no verdict", change, why="fewer than 3 launches of a side: how much they differ is unknown")
    y = slope(logs)[1]
    x = slope([1.0 if letter == "B" else 0.0 for letter in order])[1]
    power = math.fsum(value * value for value in x)
    estimate = math.fsum(p * q for p, q in zip(x, y, strict=True)) / power
    freedom = len(order) - 3.0
    deviation = math.sqrt(math.fsum((q - estimate * p) ** 2 for p, q in zip(x, y, strict=True)) / freedom)
    error = deviation / math.sqrt(power)
    half, tight = t_quantile(0.975, freedom) * error, t_quantile(0.95, freedom) * error
    low, high, limit = estimate - half, estimate + half, math.log1p(margin)
    within = estimate - tight > -limit and estimate + tight < limit
    side = "faster" if low > 0.0 else "slower" if high < 0.0 else ""
    verdict = (f"{side}, within the margin" if side else "equivalent") if within else side or "no verdict"
    why = "the interval holds 0 and reaches beyond the margin" if verdict == "no verdict" else ""
    turns = sum(one != next_one for one, next_one in pairwise(order))
    if turns < min(arms) or power < (1.0 - _LARGEST_CONFOUNDING) * arms[0] * arms[1] / len(order):
        verdict, why = "no verdict", _NOT_IN_TURNS
    return Comparison(verdict, math.expm1(estimate), math.expm1(low), math.expm1(high), why, deviation)
