"""Quantiles of Student's t, series of correlated values, and the interval of their mean."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from statistics import median, stdev

from runner.model.expectation import Range


def t_quantile(share: float, freedom: float) -> float:
    """The value that a share of the distribution lies below, 0.5 <= share < 1.

    Degrees of freedom are rounded down to a tenth, never below 1, so that few quantiles are computed.
    """
    return _quantile(share, max(math.floor(freedom * 10.0 + 1e-9) / 10.0, 1.0))


@lru_cache(maxsize=4096)
def _quantile(share: float, freedom: float) -> float:
    low, high = 0.0, 2.0
    while _share_below(high, freedom) < share:
        high *= 2.0
    for _ in range(60):
        middle = (low + high) / 2.0
        low, high = (middle, high) if _share_below(middle, freedom) < share else (low, middle)
    return (low + high) / 2.0


def _share_below(value: float, freedom: float) -> float:
    """P(T <= value) for value >= 0."""
    return 1.0 - 0.5 * _incomplete_beta(freedom / 2.0, 0.5, freedom / (freedom + value * value))


def _incomplete_beta(a: float, b: float, x: float) -> float:
    """The regularised incomplete beta function, by its continued fraction (Lentz's algorithm)."""
    if x <= 0.0 or x >= 1.0:
        return 0.0 if x <= 0.0 else 1.0
    if x > (a + 1.0) / (a + b + 2.0):
        return 1.0 - _incomplete_beta(b, a, 1.0 - x)
    front = math.exp(math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x))
    c, d = 1.0, 1.0 / _not_zero(1.0 - (a + b) * x / (a + 1.0))
    total = d
    for m in range(1, 500):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        for coefficient in (even, odd):
            d = 1.0 / _not_zero(1.0 + coefficient * d)
            c = _not_zero(1.0 + coefficient / c)
            total *= d * c
        if abs(d * c - 1.0) < 1e-13:
            break
    return front * total / a


def _not_zero(value: float) -> float:
    return value if abs(value) > 1e-300 else 1e-300


def clipped(values: Sequence[float]) -> list[float]:
    """Values held within three robust standard deviations of the median: for detection only, never for a mean."""
    middle = median(values)
    limit = 3.0 * 1.4826 * median([abs(value - middle) for value in values])  # of a normal distribution's MAD
    return [min(max(value, middle - limit), middle + limit) for value in values] if limit > 0.0 else list(values)


def slope(values: Sequence[float]) -> tuple[float, list[float]]:
    """Least-squares slope times n, in the unit of the values, and the residuals of the line."""
    n = len(values)
    middle, mean = (n - 1) / 2.0, math.fsum(values) / n
    step = math.fsum((i - middle) * value for i, value in enumerate(values)) / (n * (n * n - 1.0) / 12.0)
    return step * n, [value - mean - step * (i - middle) for i, value in enumerate(values)]


def batch_means(values: Sequence[float], batches: int) -> list[float]:
    """Means of that many equal consecutive batches; the rest is left out at the start."""
    size = len(values) // batches
    skipped = len(values) - batches * size
    return [math.fsum(values[skipped + i * size : skipped + (i + 1) * size]) / size for i in range(batches)]


LEAST_GROUPS = 30  # below: no interval, no cut, and steadiness cannot be judged
_BATCHES = 5  # few and large, so that their means are nearly independent
_BOUND = 1.645  # one-sided 95 % bound of the autocorrelation
_LARGEST_ROOT = 0.98  # correlation over more than about 99 groups is not resolved


def _autocorrelation(residuals: Sequence[float], fitted: int) -> tuple[float, float]:
    """Lag-1 autocorrelation of residuals with mean zero, corrected for bias by the ``fitted`` parameters that were
    taken out of them, and its upper bound within 0 and 0.98.
    """
    n = len(residuals)
    squares = math.fsum(value * value for value in residuals)
    if squares <= 0.0:
        return 0.0, 0.0
    raw = math.fsum(residuals[i] * residuals[i + 1] for i in range(n - 1)) / squares
    root = raw + (fitted + (fitted + 2) * raw) / n
    within = min(max(root, 0.0), 1.0)
    bound = root + _BOUND * math.sqrt(max(1.0 - within * within, 0.05) / n)
    return root, min(max(bound, 0.0), _LARGEST_ROOT)


def long_run_deviation(residuals: Sequence[float], fitted: int) -> float:
    """Standard deviation of the sum of n residuals, over sqrt(n), with the autocorrelation at its upper bound."""
    _, bound = _autocorrelation(residuals, fitted)
    variance = math.fsum(value * value for value in residuals) / (len(residuals) - fitted)
    return math.sqrt(variance * (1.0 + bound) / (1.0 - bound))


def mean_error(values: Sequence[float], share: float) -> tuple[float, float]:
    """The mean of LEAST_GROUPS values or more, and half of the width of its interval for a one-sided probability (0.975
    for an interval of 95 %): by an AR(1) whose root is at its upper bound, or by the means of 5 batches if that is
    larger.
    """
    n = len(values)
    mean = math.fsum(values) / n
    residuals = [value - mean for value in values]
    within = min(max(_autocorrelation(residuals, 1)[0], 0.0), 0.97)
    freedom = min(max(n * (1.0 - within) / (1.0 + within) - 1.0, 2.0), n - 1.0)
    by_root = t_quantile(share, freedom) * long_run_deviation(residuals, 1) / math.sqrt(n)
    by_batches = t_quantile(share, _BATCHES - 1) * stdev(batch_means(residuals, _BATCHES)) / math.sqrt(_BATCHES)
    return mean, max(by_root, by_batches)


def mean_interval(values: Sequence[float]) -> Range | None:
    """The mean group time with a 95 % interval; None below LEAST_GROUPS groups.

    It covers this window only. Variation slower than about half of the window, and events rarer than one in n / 3
    groups, are seen by further launches alone.
    """
    if len(values) < LEAST_GROUPS:
        return None
    mean, half = mean_error(values, 0.975)
    return Range(mean - half, mean, mean + half)
