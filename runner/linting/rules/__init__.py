"""One module for each of the eight steps. A rule is a function from a script to what it says of its step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from runner.linting.findings import Finding, Script
from runner.linting.rules import broadcast, data, device, gradients, metrics, output, rate, start


@dataclass(frozen=True)
class Rule:
    """One step: its name for a report, and its rule."""

    step: int
    name: str
    judge: Callable[[Script], list[Finding]]


RULES: tuple[Rule, ...] = (
    Rule(1, "initialise", start.judge),
    Rule(2, "GPU of the local rank", device.judge),
    Rule(3, "shard the data", data.judge),
    Rule(4, "scale the rate", rate.judge),
    Rule(5, "average gradients", gradients.judge),
    Rule(6, "broadcast", broadcast.judge),
    Rule(7, "rank 0 writes", output.judge),
    Rule(8, "average metrics", metrics.judge),
)
