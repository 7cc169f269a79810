"""What the records of the meter (gpu_runner_inside.meter) hold besides those of a benchmark."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from runner.jobs.collect import Evidence
from runner.model.records import Report

_CLOCK_S = 0.1  # between two readings of a clock, with room
_READ_S = 0.001  # a reading of the same clock that must lie between two others
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
    yield from _clocks(evidence)
    yield from _passes(found)
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


def _clocks(evidence: Evidence) -> Iterable[str]:
    """Whether a program's clock is the node's: a mark is read between two readings of the program's own, as it waits.

    A program that slowed its clock down would have a higher figure.
    """
    for record in evidence.watched.values():
        report, start = evidence.reports.get(record.rank), evidence.starts.get(record.rank)
        if report is None or start is None or start.token != record.token or len(report.marked_monotonic_s) != 2:
            continue
        before_s, after_s = report.marked_monotonic_s
        began_s = report.window_began_monotonic_s or 0.0
        for what, mark, early_s, late_s in (
            ("began", record.window_begin, before_s, began_s),
            ("ended", record.window_end, began_s + report.ends_s[-1], after_s),
        ):
            if mark is not None and not early_s - _READ_S <= mark.monotonic_s <= late_s + _READ_S:
                yield (
                    f"the clock of rank {record.rank}'s program is not that of {record.host}: the window {what} "
                    f"between {early_s:.3f} and {late_s:.3f} s by the program, and at {mark.monotonic_s:.3f} s by the "
                    "node's watcher; fix: leave time.monotonic as it is"
                )
                return


def _passes(found: Iterable[Report]) -> Iterable[str]:
    """Whether each step had a forward pass: a script that counts one twice would have a higher figure."""
    for report in found:
        steps = len(report.ends_s) * (report.group_steps or 0)
        if report.forwards_seen is not None and 0 < report.forwards_seen < steps:
            yield (
                f"rank {report.rank} counted {steps} steps, and {report.forwards_seen} of them had a forward pass of "
                "its model in training; fix: call step() once after each step of the optimizer"
            )
            return
