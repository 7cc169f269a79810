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


def test_a_window_without_trend_is_steady() -> None:
    found = verdicts()
    assert found.count("steady") >= 95
    assert found.count("not steady") <= 2


def test_a_trend_of_two_per_cent_is_never_steady() -> None:
    found = verdicts(trend=0.02)
    assert "steady" not in found
    assert found.count("not steady") >= 95


def test_a_trend_at_the_margin_is_rarely_steady() -> None:
    assert verdicts(trend=0.01).count("steady") <= 5


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
    times = group_times(Random(17), 60, deviation=0.03)
    found = steadiness(times)
    assert found.verdict == "cannot tell"
    assert 1000 < found.groups_needed < 1_000_000


def test_about_as_many_groups_as_it_says_are_mostly_enough() -> None:
    random = Random(19)
    needed = sorted(steadiness(group_times(random, 60)).groups_needed for _ in range(31))[15]
    found = [steadiness(group_times(random, needed)) for _ in range(100)]
    steady = [each for each in found if each.verdict == "steady"]
    assert 50 <= len(steady) <= 90
    assert {each.groups_needed for each in steady} == {0}


def test_too_few_groups_tell_nothing() -> None:
    found = steadiness([0.1] * 29)
    assert (found.verdict, found.worst, found.groups_needed) == ("cannot tell", math.inf, 30)
