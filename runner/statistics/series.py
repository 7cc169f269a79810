"""What several rules ask of a series of group times."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median

_CLIP = 3.0  # robust standard deviations
_MAD_TO_DEVIATION = 1.4826  # of a normal distribution


def clipped(values: Sequence[float]) -> list[float]:
    """Values held within three robust standard deviations of the median: for detection only, never for a mean."""
    middle = median(values)
    limit = _CLIP * _MAD_TO_DEVIATION * median([abs(value - middle) for value in values])
    if limit <= 0.0:
        return list(values)
    return [min(max(value, middle - limit), middle + limit) for value in values]


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
