"""The figure of one arm of a run, from each rank's raw times in each of the arm's windows. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from runner.model.verdict import ArmFigure, RunArm


@dataclass(frozen=True)
class ArmWindow:
    """What one rank recorded of one window.

    Attributes:
        samples: that this rank took in the window. steps: timed steps.
        end_s: when its last group ended, seconds since the ranks left the barrier before the window.
        compute_s: own computing of each step, or of some that are the same on every rank, seconds; empty where it is
            unknown.
    """

    samples: int
    steps: int
    end_s: float
    compute_s: Sequence[float] = ()


def arm_figure(arm: RunArm, windows: Sequence[Sequence[ArmWindow]], sm_clock_mhz: float | None = None) -> ArmFigure:
    """The figure of an arm. O(steps x ranks).

    Args:
        windows: of each window, every rank's; all with the same ranks and steps.

    Raises:
        ValueError: no window, or windows without a rank, a step or a time.
    """
    if not windows or not all(windows) or min(each.end_s for window in windows for each in window) <= 0.0:
        raise ValueError("nothing was timed")
    ranks = range(len(windows[0]))
    own_s = [math.fsum(window[rank].end_s for window in windows) for rank in ranks]
    samples = [sum(window[rank].samples for window in windows) for rank in ranks]
    steps = sum(window[0].steps for window in windows)
    together_s = math.fsum(max(each.end_s for each in window) for window in windows)
    rates = [count / seconds for count, seconds in zip(samples, own_s, strict=True)]
    is_alone = arm == "uncoupled"
    compute_s, jitter_s = _computing(windows)
    return ArmFigure(
        arm=arm,
        samples_per_s=math.fsum(rates) if is_alone else sum(samples) / together_s,
        slowest_samples_per_s=min(rates),
        step_s=math.fsum(own_s) / len(own_s) / steps if is_alone else together_s / steps,
        slowest_step_s=max(own_s) / steps,
        window_s=together_s,
        compute_s=compute_s,
        jitter_s=jitter_s,
        sm_clock_mhz=sm_clock_mhz,
    )


def _computing(windows: Sequence[Sequence[ArmWindow]]) -> tuple[float | None, float | None]:
    """The longest of the ranks' means, and by how much more the mean of each step's longest is."""
    counts = [{len(each.compute_s) for each in window} for window in windows]
    if any(len(count) > 1 or 0 in count for count in counts):
        return None, None
    steps = sum(map(sum, counts))
    longest = max(
        math.fsum(math.fsum(window[rank].compute_s) for window in windows) / steps for rank in range(len(windows[0]))
    )
    of_each_step = math.fsum(
        max(values) for window in windows for values in zip(*(each.compute_s for each in window), strict=True)
    )
    return longest, max(of_each_step / steps - longest, 0.0)
