"""The interval of a run's mean covers the true mean as often as it claims, or is not given."""

from __future__ import annotations

from random import Random

import pytest

from runner.statistics.precision import LEAST_GROUPS, mean_error, mean_interval
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


def test_too_few_groups_have_no_interval() -> None:
    times = group_times(Random(1), LEAST_GROUPS - 1)
    assert mean_interval(times) is None
    with pytest.raises(ValueError, match="29 groups, and 30 are the least"):
        mean_error(times)


def test_autocorrelated_times_are_worth_fewer_independent_ones() -> None:
    independent = mean_interval(group_times(Random(2), 150))
    correlated = mean_interval(group_times(Random(2), 150, autocorrelation=0.9))
    assert independent is not None and correlated is not None
    assert correlated.effective < independent.effective / 4
    assert correlated.high - correlated.low > 3 * (independent.high - independent.low)


def test_equal_times_have_an_interval_of_no_width() -> None:
    interval = mean_interval([0.25] * 40)
    assert interval is not None
    assert interval.low == interval.mean == interval.high == 0.25
