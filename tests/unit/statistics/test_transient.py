"""The start of a window is left out where it differs significantly and ends soon, and nowhere else."""

from __future__ import annotations

from random import Random

import pytest

from runner.statistics.run import LARGEST_CUT, transient
from tests.support.series import group_times

SERIES = 300


@pytest.mark.parametrize("autocorrelation", [0.0, 0.6])
def test_nothing_is_cut_from_a_stationary_series(autocorrelation: float) -> None:
    random = Random(7)
    kinds = [transient(group_times(random, 150, autocorrelation=autocorrelation)).kind for _ in range(SERIES)]
    assert kinds.count("cut") <= 0.01 * SERIES


def test_a_decaying_start_is_cut_and_its_excess_is_reported() -> None:
    found = transient(group_times(Random(1), 600, start=0.3, decay=0.02))
    assert found.kind == "cut"
    assert 5 <= found.groups <= LARGEST_CUT * 600
    assert found.excess > 0.05
    assert 0.002 < found.change < 0.01


def test_a_start_that_does_not_matter_is_reported_and_not_cut() -> None:
    found = transient(group_times(Random(1), 600, start=0.05, decay=0.02))
    assert (found.kind, found.change < 0.002) == ("immaterial", True)


def test_a_change_of_level_is_no_warm_up() -> None:
    slow_first = [0.11] * 30 + [0.1] * 120
    noisy = [
        time * (1 + noise / 1000)
        for time, noise in zip(slow_first, Random(3).choices(range(-9, 9), k=150), strict=True)
    ]
    assert transient(noisy).kind == "level"


def test_too_few_groups_show_no_start() -> None:
    assert transient([1.0] * 5 + [0.1] * 20).kind == "none"
