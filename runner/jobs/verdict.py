"""The verdict on a run that has ended: a pure function of the evidence.

Success is proven, never assumed: the scheduler says the job completed; every planned rank began, met the others,
and ended with status 0; the framework saw the planned world; ranks sit on distinct devices of the planned kind; and
where a throughput is claimed, gradients differed before the first allreduce, parameters are equal at the end, and
the figure is the one that the ranks' own records give.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable

import msgspec

from runner.diagnosis.catalogue import find
from runner.jobs.collect import Evidence
from runner.jobs.failure_causes import (
    by_a_rank,
    by_the_scheduler,
    by_the_script,
    failed_verdict,
    format_ranks,
    missing_records,
)
from runner.model.verdict import Verdict
from runner.planning.wireup import BY_MPI

_SAME = 1e-6  # relative difference of two figures that are the same


def judge(evidence: Evidence) -> Verdict:
    """The verdict. The first stage that finds a fault decides the outcome."""
    stages = (by_the_scheduler, by_a_rank, by_the_script, _unproven, _good)
    verdict = next(verdict for stage in stages if (verdict := stage(evidence)) is not None)
    return msgspec.structs.replace(verdict, forced=evidence.forced)


def _unproven(evidence: Evidence) -> Verdict | None:
    """It ran: is what it claims proven?"""
    faults = [*_incomplete(evidence), *_world(evidence), *_devices(evidence)]
    if _claims_a_figure(evidence):
        faults += [*_transport(evidence), *_synchronised(evidence), *_figure(evidence)]
    return failed_verdict(evidence, "not-proven", faults) if faults else None


def _claims_a_figure(evidence: Evidence) -> bool:
    """Whether there is a throughput to prove: the recipe promises one, or the program has left one by itself."""
    if evidence.plan.result == "if-left":
        return evidence.result is not None
    return evidence.plan.result == "throughput"


def _incomplete(evidence: Evidence) -> Iterable[str]:
    """Records that are missing, damaged or too many."""
    for sentence in evidence.damaged:
        yield f"a record cannot be read: {sentence}"
    yield from missing_records(evidence)
    for kind, records in (("start", evidence.starts), ("exit", evidence.exits), ("report", evidence.reports)):
        beyond = [rank for rank in records if rank >= evidence.plan.tasks]
        if beyond:
            yield f"{kind} records beyond the plan: {format_ranks(beyond)}"


def _world(evidence: Evidence) -> Iterable[str]:
    """The world as starter, launcher and framework saw it, against the plan."""
    plan = evidence.plan
    for rank, start in sorted(evidence.starts.items()):
        if start.size != plan.tasks:
            yield f"rank {rank} was started in a world of {start.size}, planned {plan.tasks}"
        elif not start.met:
            yield f"rank {rank} never met the other ranks"
    per_host = Counter(start.host for start in evidence.starts.values())
    if evidence.starts and sorted(per_host.values()) != sorted(plan.tasks_per_node):
        placed = ", ".join(f"{host}: {count}" for host, count in sorted(per_host.items()))
        yield f"the ranks were placed as {placed}, planned {','.join(map(str, plan.tasks_per_node))}"
    wrong = sorted(rank for rank, report in evidence.reports.items() if report.world_size != plan.tasks)
    if wrong:
        sizes = sorted({evidence.reports[rank].world_size for rank in wrong})
        shown = ", ".join(map(str, sizes))
        yield f"{format_ranks(wrong)} saw a world of size {shown}, planned {plan.tasks}"
    seen = Counter(report.world_rank for report in evidence.reports.values())
    twice = sorted(rank for rank, count in seen.items() if count > 1)
    if twice:
        yield f"several processes had the same rank in the framework's world: {format_ranks(twice)}"


def _devices(evidence: Evidence) -> Iterable[str]:
    """Every rank on a device of its own, of the planned kind."""
    kind = evidence.plan.device
    if kind == "cuda":
        blind = [rank for rank, start in evidence.starts.items() if start.device_kind != "cuda"]
        if blind:
            yield f"{format_ranks(blind)} saw no GPU"
    wrong = sorted(rank for rank, report in evidence.reports.items() if report.device_kind != kind)
    if wrong and _claims_a_figure(evidence):
        yield f"{format_ranks(wrong)} did not compute on {kind} as planned"
    places: dict[tuple[str, str], list[int]] = {}
    for rank, start in evidence.starts.items():
        report = evidence.reports.get(rank)
        uuid = (report.device_uuid if report else None) or start.device_uuid
        device = uuid or (f"index {start.local_rank}" if start.device_index is None else f"index {start.device_index}")
        places.setdefault((start.host, device), []).append(rank)
    for (host, device), ranks in sorted(places.items()):
        if len(ranks) > 1:
            yield f"{format_ranks(ranks)} shared one device ({device} on {host})"


def _transport(evidence: Evidence) -> Iterable[str]:
    """GPUs of several nodes that talk through sockets are slow and end with 0 all the same."""
    plan = evidence.plan
    if plan.device != "cuda" or plan.nodes == 1:
        return
    for network in sorted(evidence.networks):
        failure = find("NCCL log", network)
        if failure is not None:
            yield failure.cause


def _synchronised(evidence: Evidence) -> Iterable[str]:
    """Equal weights prove nothing if every rank trained on the same data: gradients must have differed before."""
    reports = [evidence.reports[rank] for rank in sorted(evidence.reports) if rank < evidence.plan.tasks]
    absent = [rank for rank in range(evidence.plan.tasks) if rank not in evidence.reports]
    if absent:
        yield f"{format_ranks(absent)} left no report of the training"
        return
    gradients = [report.gradient_checksum for report in reports]
    if None in gradients:
        yield "not every rank says what its gradients were"
    elif len(set(gradients)) != len(gradients):
        yield "ranks had the same gradients before the first allreduce: they trained on the same data"
    parameters = {report.parameter_checksum for report in reports}
    if None in parameters:
        yield "not every rank says what its parameters are"
    elif len(parameters) > 1:
        yield f"the ranks are not synchronised: {len(parameters)} different sets of parameters after the last step"
    if not all(report.onehot_ok for report in reports):
        yield "an allreduce of one-hot vectors did not give all ones"
    lost = [report.rank for report in reports if not report.loss_finite]
    if lost:
        yield f"the loss is not finite on {format_ranks(lost)}"
    if not all(report.parameters_moved for report in reports):
        yield "the parameters did not change in training"


def _figure(evidence: Evidence) -> Iterable[str]:
    """The figure against what the ranks' own records give."""
    result = evidence.result
    if result is None:
        yield "the program left no result"
        return
    if result.size != evidence.plan.tasks:
        yield f"the result is of a world of {result.size}, planned {evidence.plan.tasks}"
    for reason in result.proof_reasons:
        yield f"the program says: {reason}"
    if result.demonstration and not evidence.plan.demonstration:
        yield "the program ran as a demonstration (too short, or on CPUs), and a measurement was planned"
    figure = throughput(evidence)
    if figure is None:
        yield "the ranks' reports lack what a throughput is computed from"
    elif result.images_per_s is None:
        yield "the program gives no figure"
    elif not math.isclose(figure[0], result.images_per_s, rel_tol=_SAME):
        yield f"the result says {result.images_per_s:.3f} images/s, the ranks' own records give {figure[0]:.3f}"


def throughput(evidence: Evidence) -> tuple[float, float] | None:
    """Images per second and the window in seconds, from the ranks' own records; None where they do not hold it.

    The images of all ranks, over the latest end less the common start (after what was truncated as warm-up): never
    a sum of rates, never size times one rank's mean.
    """
    reports = [evidence.reports.get(rank) for rank in range(evidence.plan.tasks)]
    images = 0
    starts_s: list[float] = []
    end_s = 0.0
    for report in reports:
        if report is None or not report.batch_size or not report.group_steps or evidence.result is None:
            return None
        cut = evidence.result.truncated_steps // report.group_steps
        if not 0 <= cut < len(report.ends_s):
            return None
        images += (len(report.ends_s) - cut) * report.group_steps * report.batch_size
        starts_s.append(report.ends_s[cut - 1] if cut else 0.0)
        end_s = max(end_s, report.ends_s[-1])
    start_s = min(starts_s)  # the window is never shorter than the work took
    return (images / (end_s - start_s), end_s - start_s) if end_s > start_s else None


def _good(evidence: Evidence) -> Verdict:
    plan = evidence.plan
    # With MPI the programs meet by themselves: only their framework's report shows that they did.
    met = "met, " if plan.wireup not in BY_MPI or len(evidence.reports) == plan.tasks else ""
    proven = [
        f"{plan.tasks} of {plan.tasks} ranks began, {met}and ended with status 0, on {plan.nodes} hosts",
    ]
    if plan.device == "cuda":
        proven.append(f"{plan.tasks} distinct (host, device) pairs")
    if not evidence.state.name:
        proven.append("the scheduler no longer knows the job; the batch script's own marker says 0")
    if not _claims_a_figure(evidence):
        return Verdict(outcome="ran", proven=tuple(proven), demonstration=plan.demonstration)
    proven += [
        f"every rank saw a world of {plan.tasks} and computed on {plan.device}",
        "synchronised: gradients differed before the first allreduce, parameters are equal after the last step",
    ]
    if plan.device == "cuda" and plan.nodes > 1:
        used = ", ".join(sorted(evidence.networks))
        proven.append(f"NCCL's network between nodes: {used or 'not checked, NCCL left no log'}")
    figure, result = throughput(evidence), evidence.result
    assert figure is not None and result is not None
    low, high = result.precision_low_images_per_s, result.precision_high_images_per_s
    return Verdict(
        outcome="measured",
        proven=tuple(proven),
        images_per_s=figure[0],
        window_s=figure[1],
        steady=result.steady,
        precision=None if low is None or high is None else (low, high),
        demonstration=plan.demonstration,
    )
