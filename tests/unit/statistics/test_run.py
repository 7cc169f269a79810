"""From raw times to a figure: the whole window or what is left of it, and each arm of a run."""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate
from random import Random

import pytest

from runner.statistics.run import (
    LARGEST_CUT,
    ArmWindow,
    RankWindow,
    Throughput,
    analyse_groups,
    arm_figure,
    throughput,
    transient,
)
from tests.support.series import group_times


def window(times: list[float], *, late_s: float = 0.0) -> RankWindow:
    return RankWindow(samples_per_step=32, steps_per_group=10, ends_s=[end + late_s for end in accumulate(times)])


def test_the_figure_is_all_samples_over_the_latest_end() -> None:
    figure = throughput([window([0.5] * 20), window([0.5] * 20, late_s=0.25)])
    assert figure.samples_per_s == pytest.approx(2 * 20 * 10 * 32 / 10.25)
    assert (figure.steps, figure.cut_steps, figure.window_s) == (200, 0, 10.25)
    assert figure.uncut_samples_per_s == figure.samples_per_s
    few = throughput([window([0.1] * 5)])
    assert (few.low, few.high, few.analysis.steady.verdict) == (None, None, "cannot tell")


def test_a_start_is_cut_and_both_figures_are_there() -> None:
    times = group_times(Random(1), 600, start=0.3, decay=0.02)
    figure = throughput([window(times)])
    assert figure.cut_steps > 0
    assert figure.steps + figure.cut_steps == 6000
    assert figure.samples_per_s > figure.uncut_samples_per_s * 1.002
    assert figure.low is not None and figure.high is not None
    assert figure.low < figure.samples_per_s < figure.high
    assert figure.low < 3200 < figure.high  # 320 samples in 0.1 s
    both = throughput([window(times), window(times, late_s=0.05)])
    assert both.cut_s == window(times).ends_s[both.cut_steps // 10 - 1]  # the earliest rank's window is not shortened


def test_the_figure_lies_in_its_interval_though_ranks_leave_the_cut_part_apart() -> None:
    times = group_times(Random(1), 600, deviation=0.0001, start=0.3, decay=0.02)
    ends = [list(window(times).ends_s), list(window(times, late_s=0.9).ends_s)]
    ends[1][-1] = ends[0][-1] + 0.9
    figure = throughput([RankWindow(32, 10, each) for each in ends])
    assert figure.cut_steps > 0
    assert figure.low is not None and figure.high is not None
    assert figure.low <= figure.samples_per_s <= figure.high


def test_a_cut_that_leaves_an_unsteady_window_does_not_stand() -> None:
    times = group_times(Random(2), 300, deviation=0.004, start=0.5, decay=0.03, step=0.02, step_at=0.6)
    assert transient(times).kind == "cut"
    analysis = analyse_groups(tuple(times))
    assert (analysis.start.kind, analysis.cut_groups, analysis.steady.verdict) == ("level", 0, "not steady")


@pytest.mark.parametrize(
    ("ranks", "why"),
    [
        *[
            ([RankWindow(32, 10, ends_s)], "above 0 and finite")
            for ends_s in ([0.1, 0.1], [0.2, 0.1], [0.1, float("nan")], [float("inf"), float("inf")], [-1.0, 0.5])
        ],
        ([window([0.1] * 5), window([0.1] * 6)], "same groups"),
        ([], "nothing was timed"),
    ],
)
def test_times_that_do_not_rise_and_ranks_of_other_groups_are_refused(ranks: list[RankWindow], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        throughput(ranks)


def test_groups_that_took_other_samples_count_as_they_are_before_the_cut_and_after_it() -> None:
    times = [2.0] * 4 + [1.0] * 75 + [0.3125]
    taken = [400] * 4 + [320] * 75 + [100]
    figure = throughput([RankWindow(32, 10, list(accumulate(times)), taken)] * 2)
    assert figure.cut_steps == 40
    assert figure.samples_per_s == pytest.approx(2 * (320 * 75 + 100) / 75.3125)
    assert figure.uncut_samples_per_s == pytest.approx(2 * sum(taken) / 83.3125)
    assert figure.low is not None and figure.high is not None
    assert figure.low <= figure.samples_per_s <= figure.high


def other_samples(seed: int, taken: list[int], rate: Callable[[int], float]) -> Throughput:
    """The figure of groups that took those samples at that rate, with 0.2 % of noise in their times."""
    random = Random(seed)
    times = [count / rate(group) * (1.0 + random.gauss(0.0, 0.002)) for group, count in enumerate(taken)]
    return throughput([RankWindow(0, 1, list(accumulate(times)), taken)])


@pytest.mark.parametrize(
    ("taken", "rate", "verdict"),
    [
        ([1000] * 21 + [500] * 21, lambda group: 1000.0 if group < 21 else 500.0, "not steady"),
        ([1000 - 5 * group for group in range(42)], lambda group: 1000.0 - 5 * group, "not steady"),
        ([1000 + 7 * group for group in range(42)], lambda group: 1000.0, "steady"),
        ([1500, 1400, 1300, 1200] + [1000] * 38, lambda group: 1000.0, "steady"),
    ],
    ids=["the rate halves", "the rate falls", "sorted by length", "the longest first"],
)
def test_the_rate_is_judged_and_not_the_time_of_a_group(
    taken: list[int], rate: Callable[[int], float], verdict: str
) -> None:
    figure = other_samples(1, taken, rate)
    assert (figure.analysis.steady.verdict, figure.cut_steps) == (verdict, 0)


@pytest.mark.parametrize(("groups", "deviation"), [(42, 0.05), (42, 0.2), (150, 0.2)])
def test_the_interval_covers_the_rate_where_tokens_vary(groups: int, deviation: float) -> None:
    covered = 0
    for seed in range(200):
        random = Random(seed)
        taken = [max(1, round(10_000 * (1.0 + random.gauss(0.0, deviation)))) for _ in range(groups)]
        figure = other_samples(seed, taken, [float(count) for count in taken].__getitem__)  # each takes a second
        assert figure.low is not None and figure.high is not None
        covered += figure.low <= 10_000.0 <= figure.high
    assert covered >= 190


@pytest.mark.parametrize("autocorrelation", [0.0, 0.6])
def test_nothing_is_cut_from_a_stationary_series(autocorrelation: float) -> None:
    random = Random(7)
    kinds = [transient(group_times(random, 150, autocorrelation=autocorrelation)).kind for _ in range(300)]
    assert kinds.count("cut") <= 3


def test_a_start_is_cut_where_it_decays_and_matters() -> None:
    start = transient(group_times(Random(1), 600, start=0.3, decay=0.02))
    assert start.kind == "cut"
    assert 5 <= start.groups <= LARGEST_CUT * 600
    assert start.excess > 0.05
    assert 0.002 < start.change < 0.01
    small = transient(group_times(Random(1), 600, start=0.05, decay=0.02))
    assert (small.kind, small.change < 0.002) == ("immaterial", True)
    assert transient([1.0] * 5 + [0.1] * 20).kind == "none"
    noises = Random(3).choices(range(-9, 9), k=150)
    level = [time * (1 + noise / 1000) for time, noise in zip([0.11] * 30 + [0.1] * 120, noises, strict=True)]
    assert transient(level).kind == "level"


def arm_window(*ends_s: float, compute_s: tuple[tuple[float, ...], ...] = ()) -> list[ArmWindow]:
    """Two steps of 10 samples on each rank."""
    own = compute_s or ((),) * len(ends_s)
    return [ArmWindow(20, 2, end_s, steps) for end_s, steps in zip(ends_s, own, strict=True)]


def test_ranks_that_wait_for_each_other_have_one_rate_and_others_have_their_own() -> None:
    windows = [arm_window(1.0, 2.0), arm_window(1.0, 2.0)]
    together, apart = arm_figure("coordination", windows), arm_figure("uncoupled", windows)
    assert together.samples_per_s == pytest.approx(80 / 4)
    assert apart.samples_per_s == pytest.approx(40 / 2 + 40 / 4)
    assert apart.slowest_samples_per_s == pytest.approx(10.0)
    assert (together.step_s, apart.step_s, apart.slowest_step_s) == pytest.approx((1.0, 0.75, 1.0))


@pytest.mark.parametrize(
    ("compute_s", "longest"),
    [
        (((1.0, 2.0), (2.0, 1.0)), (1.5, 0.5)),  # 1.5 s in the mean of each rank, but one of them 2 s in each step
        (((1.0, 1.0), (2.0, 2.0)), (2.0, 0.0)),
        (((1.0, 2.0), ()), (None, None)),
    ],
)
def test_jitter_is_what_the_slowest_of_each_step_adds_to_the_slowest_rank(
    compute_s: tuple[tuple[float, ...], ...], longest: tuple[float | None, float | None]
) -> None:
    made = arm_figure("coordination", [arm_window(4.0, 4.0, compute_s=compute_s)])
    assert (made.compute_s, made.jitter_s) == longest


@pytest.mark.parametrize("windows", [[], [[]], [arm_window(0.0)]])
def test_nothing_timed_has_no_figure(windows: list[list[ArmWindow]]) -> None:
    with pytest.raises(ValueError, match="nothing was timed"):
        arm_figure("full", windows)
