"""The arms of a run that took turns in one process, made from every rank's own times. The same rules as for the figure:
what a program derived itself is compared, never believed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from runner.jobs import device_state
from runner.jobs.collect import Evidence
from runner.jobs.figure import CLOCK_S, Measurement, began_apart, first_and_others, out_of_step, times_fault
from runner.model.records import ArmRecord, Report
from runner.model.request import RunArm
from runner.model.verdict import ArmFigure
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
    if broken := first_and_others(_times_fault(evidence, report, len(sides)) for report in reports):
        yield broken
        return
    for place, arm in enumerate(planned):
        windows = {report.rank: report.arms[place] for report in reports}
        if apart := began_apart(evidence, {rank: window.began_monotonic_s for rank, window in windows.items()}):
            yield f"the ranks on {apart[0]} did not begin a window of the arm {arm} together"
        elif arm != "uncoupled" and out_of_step(evidence, {rank: window.ends_s for rank, window in windows.items()}):
            yield f"the ranks' times in the arm {arm} are not of one training"


def figures(evidence: Evidence, made: Measurement) -> tuple[ArmFigure, ...]:
    """Each arm's figure, in the planned order; the main arm's rate is the run's. Only where ``faults`` has none."""
    plan = evidence.plan
    reports = [evidence.reports[rank] for rank in range(plan.tasks)]
    if len(plan.arms) == 1:
        whole = [_window(report, report.ends_s, report.group_steps or 0) for report in reports]
        return (arm_figure(plan.arms[-1], [whole], device_state.sm_clock_mhz(evidence)),)
    arms = []
    for arm in plan.arms:
        places = [place for place, window in enumerate(reports[0].arms) if window.arm == arm]
        of_ranks = [[(report, report.arms[place]) for report in reports] for place in places]
        windows = [
            [_window(report, arm.ends_s, arm.group_steps, arm.compute_s) for report, arm in ranks] for ranks in of_ranks
        ]
        is_main = arm == plan.arms[-1]
        clocks = [device_state.sm_clock_mhz(evidence, None if is_main else place) for place in places]
        known = [clock for clock in clocks if clock is not None]
        figure = arm_figure(arm, windows, sum(known) / len(known) if len(known) == len(clocks) else None)
        if is_main and arm != "uncoupled":
            figure = msgspec.structs.replace(figure, samples_per_s=made.throughput.samples_per_s)
        arms.append(figure)
    return tuple(arms)


def remarks(arm: RunArm) -> Iterable[str]:
    """What a figure of another arm than training itself is."""
    if arm == "uncoupled":
        yield "arm uncoupled: each rank trained for itself; the figure is the sum of the ranks' own rates"
    elif arm == "coordination":
        yield "arm coordination: tensors were negotiated, gradients did not travel; the figure is not one of training"


def _times_fault(evidence: Evidence, report: Report, main: int) -> str:
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
    if fault := times_fault(where, window.ends_s, window.ends_checksum):
        return fault
    fits = not window.compute_s or (
        sum(window.compute_s) <= window.ends_s[-1] * 1.01 + CLOCK_S
        and len(window.compute_s) <= len(window.ends_s) * window.group_steps
        and min(window.compute_s) >= 0.0
    )
    return "" if fits else f"the computing of {where} does not fit its steps"


def _window(report: Report, ends_s: Sequence[float], group_steps: int, compute_s: Sequence[float] = ()) -> ArmWindow:
    steps = len(ends_s) * group_steps
    return ArmWindow((report.batch_size or 0) * steps, steps, ends_s[-1], compute_s)
