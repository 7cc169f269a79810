"""How far the mean of a run's group times may be from the mean of the process behind them.

Group times are autocorrelated, and the strength of that is uncertain, too. So the error is the larger of two: from an
AR(1) process whose root is taken at its upper 95 % bound, and from five batch means (Ibragimov and Mueller 2010, JBES
28; Schmeiser 1982, Operations Research 30). The root's bias is corrected after Kendall (1954) and Marriott and Pope
(1954), Biometrika 41; its bound follows Andrews (1993), Econometrica 61, and Stock (1991), J. Monetary Economics 28.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from runner.statistics.series import batch_means
from runner.statistics.student_t import t_quantile

LEAST_GROUPS = 30  # below: no interval, no cut, and steadiness cannot be judged
BATCHES = 5  # few and large, so that their means are nearly independent
_BOUND = 1.645  # one-sided 95 % bound of the autocorrelation
_LARGEST_ROOT = 0.98  # correlation over more than about 99 groups is not resolved


@dataclass(frozen=True)
class MeanError:
    """The mean of n values, and the two estimates of its standard error.

    Attributes:
        mean: in the unit of the values.
        error_by_root: standard error from an AR(1) whose root is at its upper bound; freedom: of its t.
        error_by_batches: standard error from BATCHES batch means; t with BATCHES - 1 degrees of freedom.
        effective: independent values that n values are worth at that bound, n (1 - u) / (1 + u).
    """

    mean: float
    error_by_root: float
    freedom: float
    error_by_batches: float
    effective: float

    def half_width(self, share: float) -> float:
        """For a one-sided probability ``share`` (0.975 for a 95 % interval): the larger of both."""
        return max(
            t_quantile(share, self.freedom) * self.error_by_root,
            t_quantile(share, BATCHES - 1) * self.error_by_batches,
        )


@dataclass(frozen=True)
class Interval:
    """A mean with its 95 % interval, in the unit of the values; ``effective``: see MeanError."""

    mean: float
    low: float
    high: float
    effective: float


def autocorrelation_bound(residuals: Sequence[float], fitted: int) -> tuple[float, float]:
    """Lag-1 autocorrelation, corrected for bias, and its upper bound within 0 and 0.98.

    Args:
        residuals: with mean zero.
        fitted: how many parameters were taken out of them.
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
    _, bound = autocorrelation_bound(residuals, fitted)
    variance = math.fsum(value * value for value in residuals) / (len(residuals) - fitted)
    return math.sqrt(variance * (1.0 + bound) / (1.0 - bound))


def mean_error(values: Sequence[float]) -> MeanError:
    """See MeanError. Raises ValueError below LEAST_GROUPS values."""
    n = len(values)
    if n < LEAST_GROUPS:
        raise ValueError(f"{n} groups, and {LEAST_GROUPS} are the least")
    mean = math.fsum(values) / n
    residuals = [value - mean for value in values]
    root, bound = autocorrelation_bound(residuals, 1)
    within = min(max(root, 0.0), 0.97)
    means = batch_means(residuals, BATCHES)
    middle = math.fsum(means) / BATCHES
    spread = math.fsum((value - middle) ** 2 for value in means) / (BATCHES - 1)
    return MeanError(
        mean=mean,
        error_by_root=long_run_deviation(residuals, 1) / math.sqrt(n),
        freedom=min(max(n * (1.0 - within) / (1.0 + within) - 1.0, 2.0), n - 1.0),
        error_by_batches=math.sqrt(spread / BATCHES),
        effective=n * (1.0 - bound) / (1.0 + bound),
    )


def mean_interval(values: Sequence[float]) -> Interval | None:
    """The mean group time with a 95 % interval; None below LEAST_GROUPS groups.

    It covers this window only. Variation slower than about half of the window, and events rarer than one in n / 3
    groups, are seen by further launches alone.
    """
    if len(values) < LEAST_GROUPS:
        return None
    error = mean_error(values)
    half = error.half_width(0.975)
    return Interval(error.mean, error.mean - half, error.mean + half, error.effective)
