"""What the records of the meter (gpu_runner_inside.meter) hold besides those of a benchmark, and what the verdict says
of them: of a user's program, whose own statements are marked as such.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Literal

from runner.core.text import efficiency, plain
from runner.jobs.collect import Evidence
from runner.jobs.failure_causes import format_ranks
from runner.model.records import MeterRecord, Report

_CLOCK_S = 0.1  # between two readings of a clock, with room
_READ_S = 0.001  # a reading of the same clock that must lie between two others
_LONG_WAIT_S = 1.0  # a longest wait below this is not worth a sentence
_LARGE_COST = 0.005  # of the window
_Unit = Literal["images", "samples", "tokens", "steps"]


def reports(evidence: Evidence) -> list[Report]:
    """Those of the planned ranks, by rank, if all are the meter's; else none."""
    of_ranks = [evidence.reports.get(rank) for rank in range(evidence.plan.tasks)]
    metered = [report for report in of_ranks if report is not None and report.meter]
    return metered if len(metered) == len(of_ranks) else []


def unit(evidence: Evidence) -> _Unit:
    """What the samples of the run's figure are."""
    metered = reports(evidence)
    return metered[0].unit or "samples" if metered else "images"


def batch(evidence: Evidence) -> Literal["not-checked", "others-trained", "not-stated", ""]:
    """What is doubtful in the samples of a run's figure (Verdict.batch)."""
    metered = reports(evidence)
    counted = [report for report in metered if report.unit in ("samples", "tokens")]
    if any(not report.batch_seen and report.samples_seen != sum(report.group_samples) for report in counted):
        return "not-checked"
    if any(report.steps_beside for report in metered):
        return "others-trained"
    return "not-stated" if any(report.batch_seen for report in counted) else ""


def shared_batch(evidence: Evidence) -> str:
    """Why ranks may have shared a batch, whose samples are then counted more than once (Verdict.shared_batch)."""
    metered = reports(evidence)
    firsts = [report.inputs_checksum or report.rank for report in metered]
    times = Counter(firsts)
    batches = len(times)
    if batches < len(metered):
        alike = [report.rank for report, first in zip(metered, firsts, strict=True) if times[first] > 1]
        who = "all ranks" if len(alike) == len(metered) else format_ranks(alike)
        why, rest = f"{who} took the same first batch: if they share one batch", "; else give each a sampler, or a seed"
    elif len(metered) > 1 and is_divided(evidence) and any(report.data_parallel is False for report in metered):
        batches, why, rest = 1, "neither DDP nor FSDP of all ranks was seen: if ranks share batches", " at most"
    else:
        return ""
    return f"{why}, the true figure is {len(metered) / batches:.3g} times smaller{rest}"


def is_divided(evidence: Evidence) -> bool:
    """Whether every rank says that its parameters are a part of the model's, so that ranks differ by right."""
    metered = reports(evidence)
    return bool(metered) and all(report.synchronisation == "not-examined" for report in metered)


def step_samples(evidence: Evidence) -> tuple[float, float] | None:
    """The fewest and the most samples that a rank took in a step, each a mean over a group; None where no meter
    counted.
    """
    means = [
        samples / report.group_steps for report in reports(evidence) if report.group_steps
        for samples in report.group_samples
    ]  # fmt: skip
    return (min(means), max(means)) if means else None


def varies(evidence: Evidence) -> bool:
    """Whether the batch is no part of a step: it is what the model was given, and that differs."""
    taken = step_samples(evidence)
    return taken is not None and taken[0] != taken[1] and any(each.batch_seen for each in reports(evidence))


def longer(evidence: Evidence) -> str:
    """How a longer window is asked for, with ``{}`` for its seconds."""
    return "runner_meter.start(..., window_seconds={})" if reports(evidence) else "--set window-seconds={}"


def remarks(evidence: Evidence, per_s: float) -> Iterable[str]:
    """What a reader should know beside the figure, which is ``per_s`` of all ranks."""
    metered = reports(evidence)
    if not metered:
        return
    if is_divided(evidence):
        yield (
            f"synchronisation not examined: the parameters or the optimizer's state are divided among the ranks "
            f"({metered[0].sharded}), and nothing showed whether their gradients were reduced"
        )
    first = metered[0]
    if first.unit == "steps":
        yield (
            "the figure counts the steps of every rank: it is not known how many samples one takes; "
            "fix: --meter-batch N"
        )
    elif taken := step_samples(evidence):
        batch = f"{taken[0]:.4g}" if taken[0] == taken[1] else f"{taken[0]:.4g} to {taken[1]:.4g}"
        if first.batch_seen:
            stated = first.batch_stated
            more = f"given, not {stated}" if stated else "given; --meter-batch N states it"
            if taken[0] == taken[1] == stated:
                more = "given, which may be the time: the second is as long in some steps"
            yield f"a step takes {batch} {unit(evidence)} of a rank by the first dimension of what the model was {more}"
        elif taken[0] != taken[1]:
            yield f"a step takes {batch} {unit(evidence)} of a rank"
    if any(report.reduction_unseen for report in metered) and not is_divided(evidence):
        yield (
            "in no step of the warm-up could the reduced gradients be compared with the ranks' own: they were changed "
            "in between, are too much alike, or were not seen; equal parameters alone show the ranks' synchronisation"
        )
    beside = max(report.trained_beside for report in metered)
    if beside:
        yield (
            f"the proof does not cover {beside} values of parameters that another optimizer trained; fix: "
            "runner_meter.start with the model and the optimizer that hold them"
        )
    yield from common_remarks(metered)
    if first.flops_per_sample and first.peak_flops:
        share = per_s / len(metered) * first.flops_per_sample / first.peak_flops
        yield (
            f"model FLOP utilisation: {plain(efficiency(share))}, by the script's own {first.flops_per_sample:.4g} "
            f"FLOP for each of the {unit(evidence)} and {first.peak_flops:.4g} FLOP/s of a device"
        )


def common_remarks(metered: list[Report]) -> Iterable[str]:
    """What is said of any rate of a meter: a batch that was not checked, waiting, and its own cost."""
    for report in metered:
        counted, seen = sum(report.group_samples), report.samples_seen
        if report.unit == "steps" or report.batch_seen or seen == counted:
            continue
        why = (
            f"its model was given {seen}"
            if seen is not None
            else "no forward pass of its model was seen"
            if not report.forwards_seen
            else "its model's forward passes are more than those that a step accumulates, or do not show their samples"
        )
        yield f"the script states the {counted} {report.unit} that rank {report.rank} counted, and {why}"
        break
    if all(report.waiting_s for report in metered):
        most = max(metered, key=lambda report: sum(report.waiting_s) / report.ends_s[-1])
        share = sum(most.waiting_s) / most.ends_s[-1]
        longest = most.longest_waiting_s or 0.0
        more = f", once for {longest:.1f} s" if longest >= _LONG_WAIT_S else ""
        yield (
            f"waiting for data: {100 * share:.1f} % of the window between a step's end and the next forward pass, by "
            f"the clock of rank {most.rank}'s host{more} (evaluation and checkpoints are in it)"
        )
    if not any(report.instrumentation_s is None for report in metered):
        share = max((report.instrumentation_s or 0.0) / report.ends_s[-1] for report in metered)
        large = f"; above {100 * _LARGE_COST:g} % it changes the figure" if share > _LARGE_COST else ""
        yield f"the meter itself took {100 * share:.2g} % of the window{large}"


def why_unmeasured(evidence: Evidence) -> Iterable[str]:
    """Why a meter saw no rate."""
    starts = evidence.starts
    seen = {
        rank: _why(meter)
        for rank, meter in sorted(evidence.meters.items())
        if rank in starts and meter.token in (None, starts[rank].token)
    }
    if why := next(filter(None, seen.values()), ""):
        yield f"the meter: {why} ({format_ranks(rank for rank in seen if seen[rank] == why)})"
    if not seen and dict(evidence.plan.env).get("RUNNER_METER"):
        yield (
            "the meter measured nothing: no step of an optimizer of PyTorch ended in any rank's program; "
            "fix: see its log, as it may have found a finished checkpoint and trained nothing; if it trains without "
            "such an optimizer, import runner_meter in it and call step() (gpu-runner docs meter)"
        )


def _why(meter: MeterRecord) -> str:
    """What a meter has to say of itself; empty for nothing."""
    if meter.state in ("measured", "given-up"):
        return f"measured nothing: {meter.why}" if meter.state == "given-up" else meter.why
    where = "window" if meter.state == "window" else "warm-up"
    return (
        f"measured nothing: in its {where} the program's process was replaced, or ended without Python's own end "
        "(os._exit, exec)"
    )


def faults(evidence: Evidence) -> Iterable[str]:
    """Why the meter's records hold no figure; the rest is as of any figure (runner.jobs.figure)."""
    metered = reports(evidence)
    counted = any(report.meter or report.group_samples for report in evidence.reports.values())
    if counted and evidence.plan.result == "throughput":
        yield "the reports are of a meter, which counts its own samples; a benchmark takes the planned batch a step"
        return
    if not metered:
        if any(report.meter for report in evidence.reports.values()):
            yield "only some of the ranks' reports are the meter's"
        return
    if len({report.unit for report in metered}) > 1:
        yield "the ranks' meters count in different units"
    if len({report.synchronisation for report in metered}) > 1:
        yield "the ranks' meters do not agree on how their parameters are synchronised"
    if all(report.group_samples and not sum(report.group_samples) for report in metered):
        yield "no rank's meter counted a sample"
    yield from _clocks(evidence)
    yield from _passes(metered)
    for report in metered:
        if report.samples_seen is not None and report.samples_seen < sum(report.group_samples):
            yield (
                f"rank {report.rank} counted {sum(report.group_samples)} {report.unit}, and its model was given "
                f"{report.samples_seen}"
            )
            return
    for report in metered:
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
        if report is None or not record.is_by(start) or len(report.marked_monotonic_s) != 2:
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


def _passes(metered: Iterable[Report]) -> Iterable[str]:
    """Whether each step had a forward pass: a script that counts one twice would have a higher figure."""
    for report in metered:
        steps = len(report.ends_s) * (report.group_steps or 0)
        # The hook's steps are the optimizer's, so that no script can count one twice; a model may have none at all.
        seen = report.forwards_seen
        if seen is not None and (seen == 0 or (report.meter == "script" and seen < steps)):
            fix = "call step() once after each step of the optimizer"
            if not seen:
                fix = "call the model in each step, in model.train(), or in model.eval() from before the first step on"
            yield (
                f"rank {report.rank} counted {steps} steps, and {seen} of them had a forward pass of its model in "
                f"training mode; fix: {fix}"
            )
            return
