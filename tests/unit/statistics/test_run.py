"""The figure of a run is all samples over one window, after a cut that stands."""

from __future__ import annotations

from itertools import accumulate
from random import Random

import pytest

from runner.statistics.run import RankWindow, analyse_groups, throughput, transient
from tests.support.series import group_times


def window(times: list[float], *, late_s: float = 0.0) -> RankWindow:
    return RankWindow(samples_per_step=32, steps_per_group=10, ends_s=[end + late_s for end in accumulate(times)])


def test_the_figure_is_all_samples_over_the_latest_end() -> None:
    figure = throughput([window([0.5] * 20), window([0.5] * 20, late_s=0.25)])
    assert figure.samples_per_s == pytest.approx(2 * 20 * 10 * 32 / 10.25)
    assert (figure.steps, figure.cut_steps, figure.window_s) == (200, 0, 10.25)
    assert figure.uncut_samples_per_s == figure.samples_per_s


def test_a_start_is_cut_and_both_figures_are_there() -> None:
    figure = throughput([window(group_times(Random(1), 600, start=0.3, decay=0.02))])
    assert figure.cut_steps > 0
    assert figure.steps + figure.cut_steps == 6000
    assert figure.samples_per_s > figure.uncut_samples_per_s * 1.002
    assert figure.low is not None and figure.high is not None
    assert figure.low < figure.samples_per_s < figure.high
    assert figure.low < 3200 < figure.high  # 320 samples in 0.1 s


def test_what_is_cut_never_shortens_the_window_of_the_earliest_rank() -> None:
    times = group_times(Random(1), 600, start=0.3, decay=0.02)
    figure = throughput([window(times), window(times, late_s=0.05)])
    early = window(times).ends_s[figure.cut_steps // 10 - 1]
    assert figure.cut_s == early


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
    found = analyse_groups(times)
    assert (found.start.kind, found.cut_groups, found.steady.verdict) == ("level", 0, "not steady")


def test_few_groups_give_a_figure_without_interval() -> None:
    figure = throughput([window([0.1] * 5)])
    assert (figure.low, figure.high, figure.analysis.steady.verdict) == (None, None, "cannot tell")


@pytest.mark.parametrize(
    "ends_s", [[0.1, 0.1], [0.2, 0.1], [0.1, float("nan")], [float("inf"), float("inf")], [-1.0, 0.5]]
)
def test_times_that_do_not_rise_are_refused(ends_s: list[float]) -> None:
    with pytest.raises(ValueError, match="above 0 and finite"):
        throughput([RankWindow(32, 10, ends_s)])


def test_ranks_that_did_other_groups_are_refused() -> None:
    with pytest.raises(ValueError, match="same groups"):
        throughput([window([0.1] * 5), window([0.1] * 6)])
    with pytest.raises(ValueError, match="nothing was timed"):
        throughput([])


def test_groups_that_took_other_samples_count_as_they_are() -> None:
    """Before the cut and after it, whatever a step takes by name."""
    times = [2.0] * 4 + [1.0] * 76
    taken = [400] * 4 + [320] * 75 + [100]
    figure = throughput([RankWindow(32, 10, list(accumulate(times)), taken)] * 2)
    assert figure.cut_steps == 40
    assert figure.samples_per_s == pytest.approx(2 * (320 * 75 + 100) / 76.0)
    assert figure.uncut_samples_per_s == pytest.approx(2 * sum(taken) / 84.0)
    assert figure.low is not None
    assert figure.high is not None
    assert figure.low <= figure.samples_per_s <= figure.high
