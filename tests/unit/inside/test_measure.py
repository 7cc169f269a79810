"""The statistics of a run, against values known from elsewhere or worked out by hand."""

from __future__ import annotations

import random

import pytest
from gpu_runner_inside.benchmark import measure
from gpu_runner_inside.benchmark.measure import RankWindow


@pytest.mark.parametrize(
    ("freedom", "value"),
    [(1, 12.706204736), (2, 4.302652730), (3, 3.182446305), (5, 2.570581836), (19, 2.093024054), (30, 2.042272456)],
)
def test_students_t_is_the_tables(freedom: int, value: float) -> None:
    assert measure.student_t(0.975, freedom) == pytest.approx(value, abs=1e-8)


def test_quantiles() -> None:
    assert measure.median([3.0, 1.0, 2.0]) == 2.0
    assert measure.median([1.0, 2.0, 3.0, 10.0]) == 2.5
    assert measure.quantile([0.0, 10.0], 0.95) == pytest.approx(9.5)
    with pytest.raises(ValueError, match="no values"):
        measure.median([])


def test_a_slow_start_is_cut_off_and_a_steady_run_is_not() -> None:
    steady = [1.0, 1.1] * 30
    assert measure.truncation(steady) == 0
    assert measure.truncation([5.0] * 10 + steady) == 10
    assert measure.truncation([5.0] * 7 + steady) == 10  # in whole batches of five
    assert measure.truncation([9.0] * 5 + [1.0] * 10) == 0  # too few to tell


def test_trend_is_the_growth_over_the_window_by_the_mean() -> None:
    assert measure.trend([1.0, 2.0, 3.0]) == pytest.approx(1.0 * 3 / 2.0)
    assert measure.trend([2.0] * 9) == 0.0
    assert measure.trend([1.0, 9.0]) == 0.0


def test_lag_one_autocorrelation_by_hand() -> None:
    # Deviations -1, 1, -1, 1: products sum to -3, squares to 4.
    assert measure.autocorrelation([1.0, 3.0, 1.0, 3.0]) == pytest.approx(-0.75)
    assert measure.autocorrelation([2.0, 2.0]) == 0.0


def test_the_interval_by_hand() -> None:
    values = [1.0, 1.2] * 10
    result = measure.precision(values)
    assert result is not None
    half = 2.093024054 * (20 * 0.01 / 19) ** 0.5 / 20**0.5
    assert result.mean_s == pytest.approx(1.1)
    assert (result.batches, result.batch) == (20, 1)
    assert result.high_s - result.mean_s == pytest.approx(half, rel=1e-6)
    assert measure.precision(values[:19]) is None


def test_correlated_times_get_larger_batches_and_a_wider_interval() -> None:
    draw = random.Random(1)
    noise, level = [], 0.0
    for _ in range(640):
        level = 0.8 * level + draw.gauss(0.0, 0.01)
        noise.append(1.0 + level)
    result = measure.precision(noise)
    naive = measure.student_t(0.975, 639) * (sum((x - 1) ** 2 for x in noise) / 639) ** 0.5 / 640**0.5
    assert result is not None
    assert result.batch >= 8
    assert result.batches >= measure.LEAST_BATCHES
    assert result.high_s - result.mean_s > 1.5 * naive


def test_throughput_is_all_images_over_the_time_to_the_latest_end() -> None:
    result = measure.throughput([RankWindow(32, 10, [1.0, 2.0]), RankWindow(32, 10, [1.5, 4.0])])
    assert result.images_per_s == pytest.approx(2 * 32 * 20 / 4.0)  # a sum of rates would say 480
    assert (result.window_s, result.steps, result.steady, result.precision) == (4.0, 20, None, None)


def test_throughput_leaves_a_transient_out() -> None:
    ends, now = [], 0.0
    for group in range(60):
        now += 5.0 if group < 10 else 1.0
        ends.append(now)
    result = measure.throughput([RankWindow(8, 2, ends), RankWindow(8, 2, ends)])
    assert (result.truncated_groups, result.truncated_s, result.steps) == (10, 50.0, 100)
    assert result.images_per_s == pytest.approx(2 * 8 * 2 * 50 / 50.0)
    assert result.steady is True


def test_a_run_that_slows_down_is_not_steady() -> None:
    ends, now = [], 0.0
    for group in range(60):
        now += 1.0 + 0.001 * group
        ends.append(now)
    assert measure.throughput([RankWindow(8, 1, ends)]).steady is False


@pytest.mark.parametrize("ranks", [[], [RankWindow(1, 1, [])], [RankWindow(1, 1, [1.0]), RankWindow(1, 1, [1.0, 2.0])]])
def test_ranks_that_did_not_do_the_same_are_refused(ranks: list[RankWindow]) -> None:
    with pytest.raises(ValueError, match=r"nothing was timed|did not do the same"):
        measure.throughput(ranks)


def test_a_straggler_is_slow_all_along() -> None:
    medians = [1.0, 1.001, 0.999, 1.0, 1.002, 0.998, 1.0, 1.1]
    always = [[value] * 4 for value in medians]
    assert measure.stragglers(medians, always) == [7]
    once = [[1.0] * 4 for _ in medians[:-1]] + [[1.0, 1.0, 1.4, 1.0]]
    assert measure.stragglers(medians, once) == []
    assert measure.stragglers([1.0], [[1.0] * 4]) == []
