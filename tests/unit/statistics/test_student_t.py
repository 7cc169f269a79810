"""Quantiles of Student's t against published tables."""

from __future__ import annotations

import pytest

from runner.statistics.precision import t_quantile

# NIST/SEMATECH e-Handbook of Statistical Methods, 1.3.6.7.2.
TABLE = [(0.975, 1, 12.706), (0.975, 4, 2.776), (0.95, 5, 2.015), (0.975, 10, 2.228), (0.99, 30, 2.457)]


@pytest.mark.parametrize(("share", "freedom", "value"), TABLE)
def test_quantiles_are_those_of_the_tables(share: float, freedom: float, value: float) -> None:
    assert t_quantile(share, freedom) == pytest.approx(value, abs=6e-4)


def test_fractional_degrees_of_freedom_lie_between_their_neighbours() -> None:
    assert t_quantile(0.975, 5) < t_quantile(0.975, 4.5) < t_quantile(0.975, 4)


def test_below_one_degree_of_freedom_is_one() -> None:
    assert t_quantile(0.975, 0.3) == t_quantile(0.975, 1)
