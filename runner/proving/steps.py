"""Jobs of the recipe ``prove``, and the typed facts that they leave. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

import msgspec

from runner.model.plan import RESULTS
from runner.proving.ladder import RUNG_LIMIT_S, Job, JobOutcome, Ladder

RECIPE = "prove"
FIRST = "devices"  # the rung, and the step, that all others need
# What makes NCCL say that it starts (runner/diagnosis/nccl_log.py).
_NCCL_LOG = (
    ("NCCL_DEBUG", "INFO"),
    ("NCCL_DEBUG_SUBSYS", "INIT,NET"),
    ("NCCL_DEBUG_FILE", f"{RESULTS}/nccl/%h.%p.log"),
)

Facts = TypeVar("Facts", bound=msgspec.Struct)


def step(
    ladder: Ladder, name: str, gpus: int, more: Mapping[str, str] | None = None, *, limit_s: int = RUNG_LIMIT_S
) -> Job:
    """The job of one step; ``more``: further options of the recipe."""
    options = {"step": name, "device": ladder.device, **(more or {})}
    if ladder.quick or ladder.pretend:
        options["short"] = "true"
    return Job(RECIPE, gpus, tuple(options.items()), () if ladder.pretend else _NCCL_LOG, limit_s)


def facts_of(ladder: Ladder, outcome: JobOutcome, name: str, kind: type[Facts]) -> tuple[list[Facts], list[str]]:
    """The typed facts of each rank of a step, by rank; or what is wrong with them."""
    if outcome.outcome != "ran":
        return [], [f"verdict {outcome.outcome}", *outcome.reasons[:3]]
    elsewhere = [each.rank for each in outcome.facts if each.device_kind != ladder.device or each.step != name]
    if elsewhere or not outcome.facts:
        return [], [f"ranks {elsewhere} did not do the step {name} on {ladder.device}" if elsewhere else "no record"]
    try:
        return [msgspec.convert(each.facts, kind) for each in outcome.facts], []
    except msgspec.ValidationError as error:
        return [], [f"the record of the step {name} cannot be read: {error}"]
