"""The arms of a benchmark: in which order they take turns in one process, and what is left of their windows. Pure.

full: training as it is. coordination: as many tensors are negotiated, a few bytes each. uncoupled: every rank for
itself. The last one named is the main arm: its window is contiguous and is what the run's figure is made of. The others
come before it and, in reverse, after it, so that what drifts linearly is the same in all.
"""

from __future__ import annotations

import argparse
import math
import struct
from dataclasses import dataclass, replace
from typing import Any

from gpu_runner_inside.benchmark.lengths import Lengths
from gpu_runner_inside.benchmark.proof import checksum

FULL = "full"
MOST_COMPUTE = 300  # steps of a window whose own computing is kept: enough for its mean, little for a thousand ranks


@dataclass(frozen=True)
class Window:
    """What one rank keeps of one window.

    Attributes:
        began_monotonic_s: its common start on this node's monotonic clock.
        ends_s: end of each group, seconds after the common start. compute_s: each step's own computing, seconds.
    """

    arm: str
    group_steps: int
    began_monotonic_s: float
    ends_s: list[float]
    compute_s: list[float]


def of_options(options: argparse.Namespace) -> tuple[str, ...]:
    """The arms that were asked for; ``full`` where the program has no such option."""
    return tuple(getattr(options, "arms", FULL).split(","))


def half(length: Lengths) -> Lengths:
    """Of each of the two windows that an arm has beside the main one: together as many steps as that."""
    return replace(length, groups=(length.groups + 1) // 2)


def record(window: Window) -> dict[str, Any]:
    """As the rank's report keeps it (schema.json). Of many steps the own computing of every second, third ... is kept,
    of the same ones on every rank.
    """
    every = -(-len(window.compute_s) // MOST_COMPUTE) or 1
    while math.gcd(every, window.group_steps) > 1:  # else always the same places of a group, the first after its pause
        every += 1
    return {
        "arm": window.arm,
        "group_steps": window.group_steps,
        "began_monotonic_s": window.began_monotonic_s,
        "ends_s": window.ends_s,
        "ends_checksum": checksum([struct.pack(f"<{len(window.ends_s)}d", *window.ends_s)]),
        "compute_s": [round(value, 7) for value in window.compute_s[::every]],
    }
