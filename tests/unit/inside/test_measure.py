"""Summaries of a rank's own times."""

from __future__ import annotations

import pytest
from gpu_runner_inside.benchmark import measure


def test_quantiles_lie_linearly_between_the_closest_values() -> None:
    assert measure.median([3.0, 1.0, 2.0]) == 2.0
    assert measure.median([1.0, 2.0, 3.0, 10.0]) == 2.5
    assert measure.quantile([0.0, 10.0], 0.95) == pytest.approx(9.5)
    with pytest.raises(ValueError, match="no values"):
        measure.median([])
