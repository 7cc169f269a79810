"""Quantiles of Student's t, for any number of degrees of freedom."""

from __future__ import annotations

import math
from functools import lru_cache

_TINY = 1e-300


def t_quantile(share: float, freedom: float) -> float:
    """The value that a share of the distribution lies below.

    Args:
        share: 0.5 <= share < 1.
        freedom: degrees of freedom; rounded down to a tenth, never below 1, so that few quantiles are computed.
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
    return value if abs(value) > _TINY else _TINY
