"""The interval of a run's mean covers the true mean as often as it claims, or is not given; quantiles of its t."""

from __future__ import annotations

from random import Random

import pytest

from runner.statistics.precision import LEAST_GROUPS, mean_interval, t_quantile
from tests.support.series import group_times

SERIES = 300


@pytest.mark.parametrize(("autocorrelation", "count"), [(0.0, 30), (0.0, 150), (0.6, 60), (0.9, 150)])
def test_the_interval_covers_the_mean_of_the_process(autocorrelation: float, count: int) -> None:
    random = Random(count)
    covered = 0
    for _ in range(SERIES):
        interval = mean_interval(group_times(random, count, autocorrelation=autocorrelation))
        assert interval is not None
        covered += interval.low <= 0.1 <= interval.high
    assert covered >= 0.93 * SERIES


def test_autocorrelated_times_are_worth_fewer_and_few_or_equal_ones_have_no_width() -> None:
    assert mean_interval(group_times(Random(1), LEAST_GROUPS - 1)) is None
    series = [group_times(Random(2), 150), group_times(Random(2), 150, autocorrelation=0.9), [0.25] * 40]
    independent, correlated, equal = [
        (interval.high - interval.low, interval.value) for each in series if (interval := mean_interval(each))
    ]
    assert correlated[0] > 3 * independent[0]
    assert equal == (0.0, 0.25)


# NIST/SEMATECH e-Handbook of Statistical Methods, 1.3.6.7.2.
@pytest.mark.parametrize(
    ("share", "freedom", "value"),
    [(0.975, 1, 12.706), (0.975, 4, 2.776), (0.95, 5, 2.015), (0.975, 10, 2.228), (0.99, 30, 2.457)],
)
def test_quantiles_are_those_of_the_tables(share: float, freedom: float, value: float) -> None:
    assert t_quantile(share, freedom) == pytest.approx(value, abs=6e-4)


def test_fractional_degrees_of_freedom_lie_between_their_neighbours_and_below_one_is_one() -> None:
    assert t_quantile(0.975, 5) < t_quantile(0.975, 4.5) < t_quantile(0.975, 4)
    assert t_quantile(0.975, 0.3) == t_quantile(0.975, 1)
