"""The figure of a run, made from every rank's own times. What a program derived itself is compared, never believed.

A forger who writes every record of every rank can still make them agree: nothing here claims to be proof against that.
"""

from __future__ import annotations

import hashlib
import math
import re
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from runner.core.text import rate
from runner.jobs import metering
from runner.jobs.collect import Evidence
from runner.jobs.failure_causes import format_ranks
from runner.model.records import Report
from runner.statistics.precision import LEAST_GROUPS
from runner.statistics.run import RankWindow, Throughput, throughput
from runner.statistics.steadiness import MARGIN
from runner.statistics.stragglers import Stragglers, stragglers

# A shorter warm-up or window makes no claim: the figure is labelled a demonstration.
WARMUP_STEPS, WARMUP_S = 50, 30.0
WINDOW_STEPS, WINDOW_S = 200, 30.0
_SAME = 1e-6  # relative difference of two figures that are the same
# How far apart ranks of one node may leave a barrier: on processors they may wait for each other's turn (16 ranks of
# Horovod's on 2 processors: 0.06 s).
BARRIER_S = {"cuda": 0.5, "cpu": 3.0}
_MARK_S = 5.0  # after the last step a mark waits 2 s at most for its answer
CLOCK_S = 0.1  # between two readings of one clock, with room
_AUTOTUNE = re.compile(r"\s*\+?0*[1-9]", re.ASCII)
_LEAST_S, _MOST_S = 1e-6, 1e9  # what a group of steps, or the computing of one, may take


@dataclass(frozen=True)
class Measurement:
    """What the ranks' own times give.

    Attributes:
        throughput: the figure, its interval and its steadiness.
        stragglers: slow ranks and nodes; None where not every rank recorded its compute time.
        step_s: median time of a step of the slowest rank, seconds.
        ends_s: when the last rank ended each group, seconds after the common start.
    """

    throughput: Throughput
    stragglers: Stragglers | None
    step_s: float
    ends_s: tuple[float, ...]


def faults(evidence: Evidence) -> Iterable[str]:
    """Why the records do not hold a figure, or disagree about it; empty if they hold one.

    Asks: records of today's version; one job step and one plan; the same groups and the planned batch on every rank;
    times that rise and are finite, lie within the program's life by the launcher's clock, and fit every sum that the
    program made of them.
    """
    planned = range(evidence.plan.tasks)
    reports = {rank: evidence.reports[rank] for rank in planned if rank in evidence.reports}
    if evidence.has_older_records:
        yield "the records are of an older version (1), from which no figure can be made"
        return
    yield from _one_job(evidence)
    # A user's program may take batches of its own on each rank and in each step.
    own_batches = bool(metering.reports(evidence))
    shapes = {
        (len(report.ends_s), report.group_steps, 1 if own_batches and report.batch_size else report.batch_size)
        for report in reports.values()
    }
    if len(reports) != len(planned) or not shapes:
        yield "the ranks' reports lack what a throughput is computed from"
        return
    if len(shapes) > 1:
        yield "the ranks did not do the same steps: groups x steps x batch are " + ", ".join(
            " x ".join(map(str, shape)) for shape in sorted(shapes, key=str)
        )
        return
    ((groups, group_steps, batch),) = shapes
    if not groups or not group_steps or not batch or group_steps < 1 or batch < 1:
        yield "the ranks' reports lack what a throughput is computed from"
        return
    times = [_times_fault(evidence, rank, report) for rank, report in sorted(reports.items())]
    batches = () if metering.varies(evidence) else sorted({report.batch_size or 0 for report in reports.values()})
    broken = next(filter(None, (_batch_fault(evidence, each) for each in batches)), first_and_others(times))
    if broken:
        yield broken
        return
    began_s = {
        rank: report.window_began_monotonic_s
        for rank, report in reports.items()
        if report.window_began_monotonic_s is not None
    }
    if apart := began_apart(evidence, began_s):
        node, apart_s = apart
        yield f"the ranks on {node} began the window {apart_s:.1f} s apart: they did not leave its barrier together"
    ends_s = {rank: report.ends_s for rank, report in reports.items()}
    if evidence.plan.arms[-1] != "uncoupled" and (ahead := out_of_step(evidence, ends_s)):
        rank, group, ahead_s = ahead
        yield (
            f"the ranks' times are not of one training: rank {rank} ended group {group} {ahead_s:.1f} "
            "s before another rank ended the group before it"
        )
    yield from _marks(evidence, reports)
    if wrong := list(metering.faults(evidence)):
        yield from wrong
        return
    yield from _against_result(evidence, throughput(windows(evidence)))


def first_and_others(faults_of_ranks: Iterable[str]) -> str:
    """The first fault of a rank, and how many others have one; empty for none."""
    broken = list(filter(None, faults_of_ranks))
    return f"{broken[0]} (and {len(broken) - 1} other ranks)" if len(broken) > 1 else "".join(broken)


def _batch_fault(evidence: Evidence, batch: int) -> str:
    """What is wrong with a rank's batch, beside the planned samples of a step; empty for nothing."""
    samples = evidence.plan.samples_per_step
    if samples is None:
        return ""
    if metering.unit(evidence) == "tokens":  # how many a sample has is the program's own
        uneven = f"the ranks took batches of {batch} tokens, which are not the same number for {samples} samples each"
        return uneven if batch % samples else ""
    advice = "; fix: what a step takes as --meter-batch, or nothing: the model that is seen may be given other rows"
    fix = advice if metering.reports(evidence) else ""
    return f"the ranks took batches of {batch}, planned {samples}{fix}" if batch != samples else ""


def without_figure(evidence: Evidence) -> Iterable[str]:
    """Of a run that only ran: the rate that a meter saw without a proof, or why it saw none."""
    metered = metering.reports(evidence)
    if not metered or any(report.synchronisation != "not-given" for report in metered):
        yield from metering.why_unmeasured(evidence)
        timed = [report for report in evidence.reports.values() if report.ends_s]
        if evidence.plan.result == "if-left" and len(timed) == evidence.plan.tasks:
            yield (
                "every rank left its report of a timed window, and result.json, which the first rank leaves last, is "
                "missing: no figure is made of them; fix: run it again, and leave that file in its run directory"
            )
    elif why := next(iter(faults(evidence)), ""):
        yield f"the meter: its records hold no rate: {why}"
    else:
        made = throughput(windows(evidence))
        label = why_demonstration(evidence, made)
        speed = f"{rate(made.samples_per_s)} {metering.unit(evidence)}/s over {made.window_s:.2f} s"
        why = "synchronisation not proven: it was given neither model nor optimizer"
        yield f"the meter: {speed}, {why}" + (f" ({label})" if label else "")
        yield from metering.common_remarks(metered)


def figure(evidence: Evidence) -> Measurement:
    """The figure; only where every rank has its records and ``faults`` has none. O(N) for N ranks, but for the
    stragglers.
    """
    ranks, reports = range(evidence.plan.tasks), evidence.reports
    of_ranks = windows(evidence)
    made = throughput(of_ranks)
    latest = tuple(max(ends) for ends in zip(*(window.ends_s for window in of_ranks), strict=True))
    step_s = median(end - before for before, end in pairwise((0.0, *latest))) / of_ranks[0].steps_per_group
    quarters = [reports[rank].compute_quarters_p50_s for rank in ranks]
    slow = None
    if all(len(each) == 4 and all(_LEAST_S <= value <= _MOST_S for value in each) for each in quarters):
        slow = stragglers(quarters, [evidence.nodes[rank] for rank in ranks], step_s)
    return Measurement(made, slow, step_s, latest)


def windows(evidence: Evidence) -> list[RankWindow]:
    """What each planned rank recorded of its window, by rank."""
    return [
        RankWindow(report.batch_size or 0, report.group_steps or 0, report.ends_s, report.group_samples)
        for report in (evidence.reports[rank] for rank in range(evidence.plan.tasks))
    ]


def why_demonstration(evidence: Evidence, made: Throughput) -> str:
    """Why the figure makes no performance claim; empty where it makes one."""
    plan, reports = evidence.plan, evidence.reports.values()
    if plan.demonstration:
        return plan.demonstration
    warmup_steps = min((report.warmup_steps or 0 for report in reports), default=0)
    warmup_s = min((report.warmup_s or 0.0 for report in reports), default=0.0)
    # Horovod takes the variable's leading digits for a number (operations.cc: strtol): false and true are both off.
    environments = (dict(plan.env), *(start.environment for start in evidence.starts.values()))
    autotuned = any(_AUTOTUNE.match(each.get("HOROVOD_AUTOTUNE", "")) for each in environments)
    reasons = {
        "asked for as a demonstration": evidence.result is not None and evidence.result.demonstration,
        "CPU": plan.device == "cpu",
        f"short warm-up ({warmup_steps} steps, {warmup_s:.0f} s; {WARMUP_STEPS} and {WARMUP_S:.0f} s are needed)": (
            warmup_steps < WARMUP_STEPS or warmup_s < WARMUP_S
        ),
        f"short window ({made.steps} steps, {made.window_s:.0f} s; {WINDOW_STEPS} and {WINDOW_S:.0f} s are needed)": (
            made.steps < WINDOW_STEPS or made.window_s < WINDOW_S
        ),
        "HOROVOD_AUTOTUNE changed the run while it was timed": autotuned,
    }
    named = "; ".join(reason for reason, holds in reasons.items() if holds)
    return f"demonstration, no performance claim: {named}" if named else ""


def remarks(
    made: Measurement, *, claims: bool, unit: str = "images", longer: str = "--set window-seconds={}"
) -> Iterable[str]:
    """What a reader of the figure should know beside it.

    Args:
        claims: the figure is no demonstration, so that slow ranks mean something.
        unit: what is counted. longer: how a longer window is asked for, in seconds.
    """
    run, analysis = made.throughput, made.throughput.analysis
    whole = run.uncut_samples_per_s
    uncut = f"; the whole window gives {rate(whole) if whole < 10.0 else f'{whole:.1f}'} {unit}/s"  # as bundles have it
    if run.cut_steps:
        yield (
            f"the first {run.cut_steps} steps ({run.cut_s:.1f} s) were left out: they were "
            f"{_slower(analysis.start.excess)} than the rest{uncut}"
        )
    elif analysis.start.kind == "level":
        yield (
            f"the first {analysis.start.groups} groups were {_slower(analysis.start.excess)}: a change of level and no "
            "warm-up, so nothing was left out"
        )
    shift = analysis.steady.shift
    if shift is not None:
        low, high = sorted((abs(shift.low), abs(shift.high)))
        yield (
            f"after {shift.group} groups the run was {_slower(shift.size)} (99 %: {_percent(low)} to {_percent(high)})"
        )
    if not claims:
        return
    steady, groups = analysis.steady, run.steps // run.group_steps
    if steady.verdict == "cannot tell":
        worst = _percent(steady.worst)
        hidden = f"a change of up to {worst} can hide in this window, and {_percent(MARGIN)} is the limit"
        if math.isinf(steady.worst):
            hidden = f"fewer than {LEAST_GROUPS} groups cannot tell whether the run is steady"
        if steady.groups_needed <= groups:
            yield f"{hidden}: a longer one may not tell either"
        else:
            window_s = math.ceil(run.window_s * steady.groups_needed / groups)
            yield f"{hidden}; a window of about {window_s} s may tell: {longer.format(window_s)}"
    slow = made.stragglers
    if slow is None:
        return
    cost = f"; without them a step takes up to {_percent(slow.removable)} less" if slow.removable > 0.0 else ""
    for what, places, more in (
        ("slow nodes", slow.nodes, cost),
        ("slow ranks", slow.ranks, cost),
        ("ranks that got slower during the window", slow.slowed, ""),
    ):
        if places:
            yield f"{what}: {', '.join(f'{place} (by {_percent(excess)})' for place, excess in places.items())}{more}"
    if slow.cannot_tell:
        yield f"the slowest rank is {_percent(slow.largest)} slower; healthy ranks can differ as much, so none is named"


def _one_job(evidence: Evidence) -> Iterable[str]:
    """One job step, one job and one plan, by what every launcher recorded at its start."""
    starts = evidence.starts.values()
    for what, values in (("tokens of job steps", {s.token for s in starts}), ("job ids", {s.job_id for s in starts})):
        if len(values) > 1:
            yield f"the ranks' records are of {len(values)} different {what}: they are not of one run"
    if any(not start.token for start in starts):
        yield "not every rank's start record has the token of its job step"
    foreign = sorted(
        rank
        for rank, report in evidence.reports.items()
        if rank in evidence.starts and report.token not in (None, evidence.starts[rank].token)
    )
    if foreign:
        yield f"the reports of {format_ranks(foreign)} are of another job step than their start records"
    marker = evidence.marker.job if evidence.marker is not None else ""
    # A step of an allocation has an id of its own (PROCESS.START.BOOT), which not every container runtime hands on: its
    # ranks then have the allocation's.
    jobs = [start.job_id or marker for start in starts]
    if marker and any(job != marker and job.isdigit() == marker.isdigit() for job in jobs):
        yield f"the ranks' records are of another job than the batch script's end marker, which is of job {marker}"
    plans = {start.plan_sha256 for start in starts}
    if evidence.plan_sha256 and plans != {evidence.plan_sha256}:
        yield "the ranks did not see the plan that lies in the run directory"


def times_fault(whose: str, ends_s: Sequence[float], checksum: str | None) -> str:
    """What is wrong with the times of a window by themselves; empty for nothing. ``checksum``: None where unknown."""
    if not all(_LEAST_S <= after - before <= _MOST_S for before, after in pairwise((0.0, *ends_s))):
        return f"the times of {whose} do not rise"
    packed = struct.pack(f"<{len(ends_s)}d", *ends_s)
    is_whole = checksum in (None, hashlib.sha256(packed).hexdigest()[:16])
    return "" if is_whole else f"the times of {whose} are not those that its program wrote"


def _times_fault(evidence: Evidence, rank: int, report: Report) -> str:
    if fault := times_fault(f"rank {rank}", report.ends_s, report.ends_checksum):
        return fault
    end_s = report.ends_s[-1]
    if report.elapsed_s is not None and not _same(report.elapsed_s, end_s):
        return f"rank {rank} says that its window took {report.elapsed_s:.3f} s, its groups end after {end_s:.3f} s"
    held = len(report.ends_s) * (report.group_steps or 0)
    if report.steps is not None and report.steps != held:
        return f"rank {rank} says that it did {report.steps} steps, but its groups hold {held}"
    return _life_fault(evidence, rank, report)


def _life_fault(evidence: Evidence, rank: int, report: Report) -> str:
    ended, began_s = evidence.exits.get(rank), report.window_began_monotonic_s
    if ended is None or ended.program_started_monotonic_s is None or ended.ended_monotonic_s is None:
        return f"the launcher of rank {rank} does not say when the program ran"
    if began_s is None:
        return f"rank {rank} does not say when its window began"
    first_s, last_s, window_s = ended.program_started_monotonic_s, ended.ended_monotonic_s, report.ends_s[-1]
    if not first_s - CLOCK_S <= began_s <= last_s - window_s + CLOCK_S:
        return (
            f"the window of rank {rank} ({window_s:.1f} s) lies outside its program's life of {last_s - first_s:.1f} s"
        )
    if report.warmup_s is not None and not report.warmup_s <= began_s - first_s + CLOCK_S:
        return (
            f"rank {rank} says that it warmed up for {report.warmup_s:.1f} s, its program began "
            f"{began_s - first_s:.1f} s before the window"
        )
    return ""


def began_apart(evidence: Evidence, began_s: Mapping[int, float]) -> tuple[str, float] | None:
    """The first node whose ranks, which share one clock, did not leave the barrier before a window together, and how
    many seconds they were apart.
    """
    nodes: dict[str, list[float]] = {}
    for rank, time_s in began_s.items():
        if rank in evidence.nodes:
            nodes.setdefault(evidence.nodes[rank], []).append(time_s)
    apart = ((node, max(times_s) - min(times_s)) for node, times_s in nodes.items())
    return next((each for each in apart if each[1] > BARRIER_S[evidence.plan.device]), None)


def out_of_step(evidence: Evidence, ends_s: Mapping[int, Sequence[float]]) -> tuple[int, int, float] | None:
    """The first rank whose times are not of one training with the others', its group, and how many seconds it was
    ahead: no allreduce ends before every rank has begun its step, so no rank can end a group before another one has
    ended the group before it.
    """
    room_s = BARRIER_S[evidence.plan.device]  # each rank counts from its own leaving of the barrier
    latest_s = 0.0
    for group, of_group in enumerate(zip(*ends_s.values(), strict=True), start=1):
        first_s = min(of_group)
        if first_s + room_s < latest_s:
            return list(ends_s)[of_group.index(first_s)], group, latest_s - first_s
        latest_s = max(of_group)
    return None


def _marks(evidence: Evidence, reports: Mapping[int, Report]) -> Iterable[str]:
    """Whether the window ended when a node's watcher saw it end, on the clock that both read.

    The watcher drops a mark that it could not answer within its program's patience, and nothing lies between the last
    step and the mark. Before the window there is a barrier, at which a rank may wait for the others.
    """
    for record in evidence.watched.values():
        report, end, start = reports.get(record.rank), record.window_end, evidence.starts.get(record.rank)
        if report is None or end is None or not record.is_by(start):
            continue
        ended_s = (report.window_began_monotonic_s or 0.0) + report.ends_s[-1]
        if not ended_s - CLOCK_S <= end.monotonic_s <= ended_s + _MARK_S:
            late_s = end.monotonic_s - ended_s
            yield (
                f"by the watcher of {record.host} the window ended {abs(late_s):.1f} s "
                f"{'after' if late_s > 0 else 'before'} the last step that rank {record.rank} reports"
            )
            return


def _against_result(evidence: Evidence, run: Throughput) -> Iterable[str]:
    result = evidence.result
    if result is None:
        return
    window_s = max(evidence.reports[rank].ends_s[-1] for rank in range(evidence.plan.tasks))
    if result.preliminary_images_per_s is None:
        yield "the program gives no figure"
    elif not _same(run.uncut_samples_per_s, result.preliminary_images_per_s):
        unit = metering.unit(evidence)
        yield (
            f"the result says {result.preliminary_images_per_s:.3f} {unit}/s, the ranks' own records give "
            f"{run.uncut_samples_per_s:.3f}"
        )
    if not _same(window_s, result.window_s):
        yield f"the result says that the window took {result.window_s:.3f} s, the ranks' own records {window_s:.3f} s"


def _slower(excess: float) -> str:
    return f"{_percent(abs(excess))} {'slower' if excess >= 0.0 else 'faster'}"


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _same(one: float, other: float) -> bool:
    return math.isclose(one, other, rel_tol=_SAME)
