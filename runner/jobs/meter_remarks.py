"""What the verdict says of a run that the meter measured: a user's program, whose own statements are marked as such."""

from __future__ import annotations

from collections.abc import Iterable

from runner.jobs import figure
from runner.jobs.collect import Evidence
from runner.jobs.failure_causes import format_ranks
from runner.jobs.metering import is_divided, reports, unit
from runner.model.records import MeterRecord, Report
from runner.statistics.run import throughput

_LONG_WAIT_S = 1.0  # a longest wait below this is not worth a sentence
_LARGE_COST = 0.005  # of the window


def remarks(evidence: Evidence, per_s: float) -> Iterable[str]:
    """What a reader should know beside the figure, which is ``per_s`` of all ranks."""
    found = reports(evidence)
    if not found:
        return
    if is_divided(evidence):
        yield (
            f"synchronisation not examined: the parameters or the optimizer's state are divided among the ranks "
            f"({found[0].sharded}), and nothing showed whether their gradients were reduced"
        )
    first = found[0]
    if first.unit == "steps":
        yield (
            "the figure counts the steps of every rank: it is not known how many samples one takes; "
            "fix: --meter-batch N"
        )
    elif first.batch_seen:
        yield (
            f"a step takes {first.batch_size} samples of a rank by the first dimension of what the model was given; "
            "--meter-batch N states it"
        )
    beside = max(report.trained_beside for report in found)
    if beside:
        yield (
            f"the proof does not cover {beside} values of parameters that another optimizer trained; fix: "
            "runner_meter.start with the model and the optimizer that hold them"
        )
    yield from _stated(found)
    yield from _waiting(found)
    yield from _cost(found)
    if first.flops_per_sample and first.peak_flops:
        share = per_s / len(found) * first.flops_per_sample / first.peak_flops
        yield (
            f"model FLOP utilisation: {100 * share:.1f} %, by the script's own {first.flops_per_sample:.4g} FLOP for "
            f"each of the {_of_one(first)} and {first.peak_flops:.4g} FLOP/s of a device"
        )


def without_figure(evidence: Evidence) -> Iterable[str]:
    """Of a run that only ran: the rate that a meter saw without a proof, or why it saw none."""
    found = reports(evidence)
    if found and all(report.synchronisation == "not-given" for report in found):
        yield from _rate(evidence, found)
        return
    seen = {
        rank: meter
        for rank, meter in evidence.meters.items()
        if rank in evidence.starts and meter.token in (None, evidence.starts[rank].token)
    }
    said = dict.fromkeys(_why(meter) for _, meter in sorted(seen.items()))
    said.pop("", None)
    for why in list(said)[:1]:
        ranks = [rank for rank, meter in seen.items() if _why(meter) == why]
        yield f"the meter: {why} ({format_ranks(ranks)})"
    if not seen and dict(evidence.plan.env).get("RUNNER_METER"):
        yield (
            "the meter measured nothing: no step of an optimizer of PyTorch ended in any rank's program; "
            "fix: import runner_meter in it and call step() (docs/meter.md)"
        )


def _rate(evidence: Evidence, found: list[Report]) -> Iterable[str]:
    why = next(iter(figure.faults(evidence)), "")
    if why:
        yield f"the meter: its records hold no rate: {why}"
        return
    made = throughput(figure.windows(evidence))
    label = figure.why_demonstration(evidence, made)
    rate = f"{made.samples_per_s:.1f} {unit(evidence)}/s over {made.window_s:.2f} s"
    why = "synchronisation not proven: it was given neither model nor optimizer"
    yield f"the meter: {rate}, {why}" + (f" ({label})" if label else "")
    yield from _stated(found)
    yield from _waiting(found)
    yield from _cost(found)


def _stated(found: list[Report]) -> Iterable[str]:
    """Where the stated batch is not what the model was given: it may be that of all ranks, or lack an accumulation."""
    for report in found:
        counted, seen = sum(report.group_samples), report.samples_seen
        if report.unit == "samples" and counted and seen and counted != seen:
            yield (
                f"the figure may be wrong: rank {report.rank} counted {counted} samples as the script states them, and "
                f"its model was given {seen} by the first dimension of its input ({counted / seen:.3g} times); state "
                "the batch of one rank and one forward pass"
            )
            return


def _why(meter: MeterRecord) -> str:
    """What a meter has to say of itself; empty for nothing."""
    if meter.state in ("measured", "given-up"):
        return f"measured nothing: {meter.why}" if meter.state == "given-up" else meter.why
    where = "window" if meter.state == "window" else "warm-up"
    return (
        f"measured nothing: in its {where} the program's process was replaced, or ended without Python's own end "
        "(os._exit, exec)"
    )


def _waiting(found: list[Report]) -> Iterable[str]:
    """How long the host was between a step's end and the next forward pass, on the rank that was so the longest."""
    if not all(report.waiting_s for report in found):
        return
    most = max(found, key=lambda report: sum(report.waiting_s) / report.ends_s[-1])
    share = sum(most.waiting_s) / most.ends_s[-1]
    longest = most.longest_waiting_s or 0.0
    more = f", once for {longest:.1f} s" if longest >= _LONG_WAIT_S else ""
    yield (
        f"waiting for data: {100 * share:.1f} % of the window between a step's end and the next forward pass, by the "
        f"clock of rank {most.rank}'s host{more} (evaluation and checkpoints are in it)"
    )


def _cost(found: list[Report]) -> Iterable[str]:
    if any(report.instrumentation_s is None for report in found):
        return
    share = max((report.instrumentation_s or 0.0) / report.ends_s[-1] for report in found)
    large = f"; above {100 * _LARGE_COST:g} % it changes the figure" if share > _LARGE_COST else ""
    yield f"the meter itself took {100 * share:.2g} % of the window{large}"


def _of_one(report: Report) -> str:
    return report.unit or "samples"
