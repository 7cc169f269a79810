"""Summaries of a rank's own times. The run's figure is made outside, from the raw times (runner/statistics)."""

from __future__ import annotations

import math
from typing import Sequence


def median(values: Sequence[float]) -> float:
    """Raises ValueError for no values."""
    return quantile(values, 0.5)


def quantile(values: Sequence[float], share: float) -> float:
    """Linear between the closest ranks (Hyndman and Fan's type 7). Raises ValueError for no values."""
    if not values:
        raise ValueError("no values")
    ordered = sorted(values)
    at = (len(ordered) - 1) * share
    low = math.floor(at)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (at - low)
