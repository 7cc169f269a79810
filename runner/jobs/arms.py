"""The arms of a run that took turns in one process, made from every rank's own times. The same rules as for the figure:
what a program derived itself is compared, never believed.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable, Sequence
from itertools import pairwise

import msgspec

from runner.jobs import device_state
from runner.jobs.collect import Evidence
from runner.jobs.figure import BARRIER_S, CLOCK_S, LEAST_S, MOST_S, Measurement
from runner.model.records import ArmRecord, Report
from runner.model.verdict import ArmFigure, RunArm
from runner.statistics.run import ArmWindow, arm_figure


def faults(evidence: Evidence) -> Iterable[str]:
    """Why the records do not hold the arms that were planned; empty where there is but one, and it is the planned one.

    Asks: the planned arms, in the planned order; the same windows and steps on every rank; times that rise, and lie
    one window after the other within the program's life; a start of each window that a node's ranks have in common;
    ranks in step where they wait for each other.
    """
    plan = evidence.plan
    reports = [evidence.reports[rank] for rank in range(plan.tasks) if rank in evidence.reports]
    others = sorted({report.arm for report in reports} - {plan.arms[-1]})
    if others:
        yield f"the window is of the arm {others[0]}, planned {plan.arms[-1]}"
        return
    *sides, main = plan.arms
    planned = [*sides, main, *reversed(sides)] if sides else []
    if any([window.arm for window in report.arms] != planned for report in reports):
        yield f"the ranks did not take the planned turns: {', '.join(planned) or 'none'}"
        return
    shapes = {
        tuple((len(window.ends_s), window.group_steps, len(window.compute_s)) for window in report.arms)
        for report in reports
    }
    if len(shapes) > 1 or not all(groups and steps for shape in shapes for groups, steps, _ in shape):
        yield "the ranks did not do the same steps in each arm"
        return
    broken = [fault for report in reports if (fault := _times_fault(evidence, report, len(sides)))]
    if broken:
        yield broken[0] if len(broken) == 1 else f"{broken[0]} (and {len(broken) - 1} other ranks)"
        return
    for place, arm in enumerate(planned):
        yield from _together(evidence, [report.arms[place] for report in reports], reports, arm)


def figures(evidence: Evidence, made: Measurement) -> tuple[ArmFigure, ...]:
    """Each arm's figure, in the planned order; the main arm's rate is the run's. Only where ``faults`` has none."""
    plan = evidence.plan
    reports = [evidence.reports[rank] for rank in range(plan.tasks)]
    if len(plan.arms) == 1:
        main = arm_figure(plan.arms[-1], [[_whole(report) for report in reports]], device_state.sm_clock_mhz(evidence))
        return (main,)
    found = []
    for arm in plan.arms:
        places = [place for place, window in enumerate(reports[0].arms) if window.arm == arm]
        windows = [[_window(report, report.arms[place]) for report in reports] for place in places]
        is_main = arm == plan.arms[-1]
        clocks = [
            device_state.sm_clock_mhz(evidence) if is_main else device_state.arm_clock_mhz(evidence, place)
            for place in places
        ]
        known = [clock for clock in clocks if clock is not None]
        figure = arm_figure(arm, windows, sum(known) / len(known) if len(known) == len(clocks) else None)
        if is_main and arm != "uncoupled":
            figure = msgspec.structs.replace(figure, samples_per_s=made.throughput.samples_per_s)
        found.append(figure)
    return tuple(found)


def remarks(arm: RunArm) -> Iterable[str]:
    """What a figure of another arm than training itself is."""
    if arm == "uncoupled":
        yield "arm uncoupled: each rank trained for itself; the figure is the sum of the ranks' own rates"
    elif arm == "coordination":
        yield "arm coordination: tensors were negotiated, gradients did not travel; the figure is not one of training"


def _times_fault(evidence: Evidence, report: Report, main: int) -> str:
    """What is wrong with one rank's windows; empty if nothing is."""
    ended = evidence.exits.get(report.rank)
    if not report.arms or ended is None:
        return ""
    free_s = ended.program_started_monotonic_s or 0.0
    for place, window in enumerate(report.arms):
        where = f"the window {place + 1} ({window.arm}) of rank {report.rank}"
        fault = _window_fault(window, where)
        if fault or window.began_monotonic_s < free_s - CLOCK_S:
            return fault or f"{where} began before its program, or before the one in front of it had ended"
        free_s = window.began_monotonic_s + window.ends_s[-1]
    if free_s > (ended.ended_monotonic_s or 0.0) + CLOCK_S:
        return f"the last window of rank {report.rank} ended after its program"
    of_run = report.arms[main]
    same = (of_run.ends_s, of_run.group_steps, of_run.began_monotonic_s) == (
        report.ends_s, report.group_steps, report.window_began_monotonic_s,
    )  # fmt: skip
    return "" if same else f"rank {report.rank} gives two accounts of its timed window"


def _window_fault(window: ArmRecord, where: str) -> str:
    """What is wrong with the times of one window; empty if nothing is."""
    if not all(LEAST_S <= after - before <= MOST_S for before, after in pairwise((0.0, *window.ends_s))):
        return f"the times of {where} do not rise"
    packed = struct.pack(f"<{len(window.ends_s)}d", *window.ends_s)
    if window.ends_checksum != hashlib.sha256(packed).hexdigest()[:16]:
        return f"the times of {where} are not those that its program wrote"
    return "" if _computing_fits(window) else f"the computing of {where} does not fit its steps"


def _computing_fits(window: ArmRecord) -> bool:
    """Whether the own computing is unknown, or has at most one time of each step, all of which fit into the window."""
    steps = len(window.ends_s) * window.group_steps
    if not window.compute_s:
        return True
    fits = sum(window.compute_s) <= window.ends_s[-1] * 1.01 + CLOCK_S
    return len(window.compute_s) <= steps and min(window.compute_s) >= 0.0 and fits


def _together(
    evidence: Evidence, windows: Sequence[ArmRecord], reports: Sequence[Report], arm: RunArm
) -> Iterable[str]:
    """Whether a node's ranks began a window together, and, where they wait for each other, stayed in step."""
    room_s = BARRIER_S[evidence.plan.device]
    began: dict[str, list[float]] = {}
    for report, window in zip(reports, windows, strict=True):
        if report.rank in evidence.nodes:
            began.setdefault(evidence.nodes[report.rank], []).append(window.began_monotonic_s)
    for node, times_s in began.items():
        if max(times_s) - min(times_s) > room_s:
            yield f"the ranks on {node} did not begin a window of the arm {arm} together"
            return
    if arm == "uncoupled":
        return
    latest_s = 0.0
    for ends_s in zip(*(window.ends_s for window in windows), strict=True):
        if min(ends_s) + room_s < latest_s:
            yield f"the ranks' times in the arm {arm} are not of one training"
            return
        latest_s = max(ends_s)


def _whole(report: Report) -> ArmWindow:
    steps = len(report.ends_s) * (report.group_steps or 0)
    return ArmWindow((report.batch_size or 0) * steps, steps, report.ends_s[-1])


def _window(report: Report, window: ArmRecord) -> ArmWindow:
    steps = len(window.ends_s) * window.group_steps
    return ArmWindow((report.batch_size or 0) * steps, steps, window.ends_s[-1], window.compute_s)
