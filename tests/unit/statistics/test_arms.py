"""The figure of an arm, from the raw times of its windows."""

from __future__ import annotations

import pytest

from runner.statistics.run import ArmWindow, arm_figure


def window(*ends_s: float, compute_s: tuple[tuple[float, ...], ...] = ()) -> list[ArmWindow]:
    """Two steps of 10 samples on each rank."""
    own = compute_s or ((),) * len(ends_s)
    return [ArmWindow(20, 2, end_s, steps) for end_s, steps in zip(ends_s, own, strict=True)]


def test_ranks_that_wait_for_each_other_have_one_rate_and_others_have_their_own() -> None:
    windows = [window(1.0, 2.0), window(1.0, 2.0)]
    together, apart = arm_figure("coordination", windows), arm_figure("uncoupled", windows)
    assert together.samples_per_s == pytest.approx(80 / 4)
    assert apart.samples_per_s == pytest.approx(40 / 2 + 40 / 4)
    assert apart.slowest_samples_per_s == pytest.approx(10.0)
    assert (together.step_s, apart.step_s, apart.slowest_step_s) == pytest.approx((1.0, 0.75, 1.0))


def test_jitter_is_what_the_slowest_of_each_step_adds_to_the_slowest_rank() -> None:
    """Each rank computes 1.5 s in the mean, but one of them 2 s in each step."""
    made = arm_figure("coordination", [window(4.0, 4.0, compute_s=((1.0, 2.0), (2.0, 1.0)))])
    assert (made.compute_s, made.jitter_s) == pytest.approx((1.5, 0.5))
    steady = arm_figure("coordination", [window(4.0, 4.0, compute_s=((1.0, 1.0), (2.0, 2.0)))])
    assert (steady.compute_s, steady.jitter_s) == pytest.approx((2.0, 0.0))


def test_computing_that_not_every_rank_tells_is_unknown() -> None:
    made = arm_figure("full", [window(4.0, 4.0, compute_s=((1.0, 2.0), ()))])
    assert made.compute_s is None
    assert made.jitter_s is None


@pytest.mark.parametrize("windows", [[], [[]], [window(0.0)]])
def test_nothing_timed_has_no_figure(windows: list[list[ArmWindow]]) -> None:
    with pytest.raises(ValueError, match="nothing was timed"):
        arm_figure("full", windows)
