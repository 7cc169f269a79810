"""How long the warm-up and the timed window are. Pure: the benchmark brings the clock, and all ranks decide alike."""

from __future__ import annotations

import argparse
import math
from dataclasses import dataclass
from typing import Sequence, Tuple

from gpu_runner_inside.benchmark.options import WINDOW

# What the judge outside may cut from the start of the window, and what it needs for an interval
# (runner/statistics: LARGEST_CUT, LEAST_GROUPS).
LARGEST_CUT = 0.25
LEAST_GROUPS = 30
SPARE = 1.05  # steps may get faster after the warm-up
_LONGEST_GROUP_STEPS = 10
_GROUP_S = 1.0

Part = Tuple[int, float]  # steps of one group of the warm-up, and the seconds it took on rank 0


@dataclass(frozen=True)
class Lengths:
    """What was decided for all ranks: warm-up steps and seconds done, timed groups and steps in each."""

    warmup_steps: int
    warmup_s: float
    groups: int
    group_steps: int


def group_steps(step_s: float) -> int:
    """Steps between two synchronisations of the device: about a second's worth, 1 to 10."""
    return min(max(round(_GROUP_S / step_s), 1), _LONGEST_GROUP_STEPS) if step_s > 0.0 else _LONGEST_GROUP_STEPS


def next_part(parts: Sequence[Part], options: argparse.Namespace) -> int:
    """Steps of the warm-up's next group; 0 when both its steps and its seconds are over."""
    steps, seconds = sum(part[0] for part in parts), sum(part[1] for part in parts)
    if not parts:
        first: int = options.warmup_steps
        return min(max(math.ceil(first / 2), 1), _LONGEST_GROUP_STEPS)
    if steps >= options.warmup_steps and seconds >= options.warmup_seconds:
        return 0
    last_steps, last_s = parts[-1]
    count = group_steps(last_s / last_steps)
    return count if seconds < options.warmup_seconds else min(count, options.warmup_steps - steps)


def step_seconds(parts: Sequence[Part]) -> float:
    """Seconds of a step at the end of the warm-up: of the groups that ended in the last half of its time.

    The smaller of their mean and their median, so that a hiccup makes the window longer and not shorter.
    """
    half, ended, late = sum(part[1] for part in parts) / 2.0, 0.0, []
    for steps, seconds in parts:
        ended += seconds
        if ended >= half:
            late.append((seconds / steps, steps, seconds))
    ordered = sorted(each[0] for each in late)
    mean = sum(each[2] for each in late) / sum(each[1] for each in late)
    return min(mean, ordered[(len(ordered) - 1) // 2])


def planned(parts: Sequence[Part], options: argparse.Namespace) -> Lengths:
    """The window after this warm-up.

    A figure that may claim something needs the steps, the seconds and the groups even after the largest cut, so its
    window is 1 / (1 - LARGEST_CUT) x SPARE = 1.4 times as long. A demonstration does what it was asked for.
    """
    step_s = max(step_seconds(parts), 1e-9)
    claims = not options.demonstration and options.steps >= WINDOW[0] and options.window_seconds >= WINDOW[1]
    stretch = SPARE / (1.0 - LARGEST_CUT) if claims else 1.0
    steps = math.ceil(max(options.steps, options.window_seconds / step_s) * stretch)
    count = group_steps(step_s)
    least = math.ceil(LEAST_GROUPS * stretch)
    if steps < least * count:
        count = max(steps // least, 1)
    return Lengths(
        warmup_steps=sum(part[0] for part in parts),
        warmup_s=sum(part[1] for part in parts),
        groups=math.ceil(steps / count),
        group_steps=count,
    )
