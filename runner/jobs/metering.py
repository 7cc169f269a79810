"""What the records of the meter (gpu_runner_inside.meter) hold besides those of a benchmark."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from runner.jobs.collect import Evidence
from runner.model.records import Report

_CLOCK_S = 0.1  # between two readings of a clock, with room
_Unit = Literal["images", "samples", "tokens", "steps"]


def reports(evidence: Evidence) -> list[Report]:
    """Those of the planned ranks, by rank, if all are the meter's; else none."""
    found = [evidence.reports[rank] for rank in range(evidence.plan.tasks) if rank in evidence.reports]
    return found if len(found) == evidence.plan.tasks and all(report.meter for report in found) else []


def unit(evidence: Evidence) -> _Unit:
    """What the samples of the run's figure are."""
    found = reports(evidence)
    return found[0].unit or "samples" if found else "images"


def is_divided(evidence: Evidence) -> bool:
    """Whether every rank says that its parameters are a part of the model's, so that ranks differ by right."""
    found = reports(evidence)
    return bool(found) and all(report.synchronisation == "not-examined" for report in found)


def longer(evidence: Evidence) -> str:
    """How a longer window is asked for, with ``{}`` for its seconds."""
    return "runner_meter.start(..., window_seconds={})" if reports(evidence) else "--set window-seconds={}"


def faults(evidence: Evidence) -> Iterable[str]:
    """Why the meter's records hold no figure; the rest is as of any figure (runner.jobs.figure)."""
    found = reports(evidence)
    counted = any(report.meter or report.group_samples for report in evidence.reports.values())
    if counted and evidence.plan.result == "throughput":
        yield "the reports are of a meter, which counts its own samples; a benchmark takes the planned batch a step"
        return
    if not found:
        if any(report.meter for report in evidence.reports.values()):
            yield "only some of the ranks' reports are the meter's"
        return
    if len({report.unit for report in found}) > 1:
        yield "the ranks' meters count in different units"
    if len({report.synchronisation for report in found}) > 1:
        yield "the ranks' meters do not agree on how their parameters are synchronised"
    if all(report.group_samples and not sum(report.group_samples) for report in found):
        yield "no rank's meter counted a sample"
    for report in found:
        groups = len(report.ends_s)
        if report.group_samples and len(report.group_samples) != groups:
            yield f"rank {report.rank} reports samples of {len(report.group_samples)} groups, and did {groups}"
            return
        group_s = [end - before for before, end in zip((0.0, *report.ends_s[:-1]), report.ends_s, strict=True)]
        if report.waiting_s and (
            len(report.waiting_s) != groups
            or any(wait > whole + _CLOCK_S for wait, whole in zip(report.waiting_s, group_s, strict=True))
        ):
            yield f"rank {report.rank} says that it waited longer than its groups took"
            return
