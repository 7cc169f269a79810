"""A window is called steady, not steady, or neither; a true trend is never called steady."""

from __future__ import annotations

import math
from random import Random

import pytest

from runner.statistics.steadiness import level_shift, steadiness
from tests.support.series import group_times


def verdicts(**shape: float) -> list[str]:
    random = Random(11)
    return [steadiness(group_times(random, 300, deviation=0.005, **shape)).verdict for _ in range(100)]


@pytest.mark.parametrize(
    ("trend", "steady", "not_steady"), [(0.0, (95, 100), (0, 2)), (0.01, (0, 5), (0, 100)), (0.02, (0, 0), (95, 100))]
)
def test_a_window_is_steady_by_its_trend(trend: float, steady: tuple[int, int], not_steady: tuple[int, int]) -> None:
    made = verdicts(trend=trend)
    assert steady[0] <= made.count("steady") <= steady[1]
    assert not_steady[0] <= made.count("not steady") <= not_steady[1]


def test_a_step_is_reported_with_its_place_size_and_limits() -> None:
    shift = level_shift(group_times(Random(5), 300, deviation=0.005, step=0.03, step_at=0.6))
    assert shift is not None
    assert shift.group == pytest.approx(180, abs=6)
    assert shift.low < 0.03 / 1.012 < shift.high
    assert "not steady" in verdicts(step=0.03)


def test_false_steps_are_rare() -> None:
    random = Random(13)
    found = [level_shift(group_times(random, 150, autocorrelation=0.3)) for _ in range(300)]
    assert sum(shift is not None for shift in found) <= 6


def test_noise_that_hides_a_trend_is_not_called_steady_and_says_how_many_groups_it_would_need() -> None:
    loud = steadiness(group_times(Random(17), 60, deviation=0.03))
    assert loud.verdict == "cannot tell"
    assert 1000 < loud.groups_needed < 1_000_000
    random = Random(19)
    needed = sorted(steadiness(group_times(random, 60)).groups_needed for _ in range(31))[15]
    steady = [each for _ in range(100) if (each := steadiness(group_times(random, needed))).verdict == "steady"]
    assert 50 <= len(steady) <= 90
    assert {each.groups_needed for each in steady} == {0}


def test_too_few_groups_tell_nothing() -> None:
    few = steadiness([0.1] * 29)
    assert (few.verdict, few.worst, few.groups_needed) == ("cannot tell", math.inf, 30)
