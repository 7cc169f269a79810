"""The verdict on a run that has ended: a pure function of the evidence.

Success is proven, never assumed: the scheduler says the job completed; every planned rank began, met the others,
and ended with status 0; the framework saw the planned world; ranks sit on distinct devices of the planned kind; and
where a throughput is claimed, gradients differed before the first allreduce, parameters are equal at the end, and
the figure is the one that the ranks' own records give.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import msgspec

from runner.core.text import counted, first_of
from runner.jobs import arms, device_state, metering, mixture, transport, worlds
from runner.jobs import figure as figures
from runner.jobs.collect import Evidence
from runner.jobs.failure_causes import (
    by_a_rank,
    by_the_container,
    by_the_scheduler,
    by_the_script,
    failed_verdict,
    format_ranks,
    missing_records,
)
from runner.model.records import DEVICE_UUIDS, Report
from runner.model.verdict import Verdict
from runner.planning.wireup import BY_MPI

_MOST_NODES = 8  # in one sentence
# Of reduced gradients from the mean of the ranks' own, of the same pass: rounding lies below, one rank's own is 1.
_REDUCED = 0.05


def judge(evidence: Evidence) -> Verdict:
    """The verdict. The first stage that finds a fault decides the outcome."""
    stages = (by_the_scheduler, by_the_container, by_a_rank, by_the_script, _unproven, _good)
    verdict = next(verdict for stage in stages if (verdict := stage(evidence)) is not None)
    first = {name: next(iter(by_node.values()), "unknown") for name, by_node in evidence.versions.items()}
    others = {
        name: [f"{version} on {node}" for node, version in by_node.items() if version != first[name]]
        for name, by_node in evidence.versions.items()
    }
    remarks = [f"{name} is {first[name]}, but {first_of(those, 4)}" for name, those in others.items() if those]
    return msgspec.structs.replace(
        verdict,
        forced=evidence.forced,
        runtime=evidence.plan.runtime,
        versions=first,
        remarks=(*verdict.remarks, *remarks),
    )


def _unproven(evidence: Evidence) -> Verdict | None:
    faults = [*_incomplete(evidence), *_world(evidence), *worlds.faults(evidence), *_devices(evidence)]
    if _claims_a_figure(evidence):
        faults += [*transport.faults(evidence), *_collectives(evidence), *_synchronised(evidence), *_figure(evidence)]
        faults += mixture.faults(evidence)
    return failed_verdict(evidence, "not-proven", faults) if faults else None


def _claims_a_figure(evidence: Evidence) -> bool:
    """Whether there is a throughput to prove: the recipe promises one, or the program has left one by itself."""
    if evidence.plan.result == "if-left":
        return evidence.result is not None
    return evidence.plan.result == "throughput"


def _incomplete(evidence: Evidence) -> Iterable[str]:
    for sentence in evidence.damaged:
        yield f"a record cannot be read: {sentence}"
    yield from missing_records(evidence)
    for kind, records in (("start", evidence.starts), ("exit", evidence.exits), ("report", evidence.reports)):
        if beyond := [rank for rank in records if rank >= evidence.plan.tasks]:
            yield f"{kind} records beyond the plan: {format_ranks(beyond)}"


def _world(evidence: Evidence) -> Iterable[str]:
    plan, tasks = evidence.plan, evidence.plan.tasks
    for rank, start in sorted(evidence.starts.items()):
        if start.size != tasks:
            yield f"rank {rank} was started in a world of {start.size}, planned {tasks}"
        elif not start.met:
            yield f"rank {rank} never met the other ranks"
    per_node = Counter(evidence.nodes.values())
    if evidence.starts and sorted(per_node.values()) != sorted(plan.tasks_per_node):
        yield f"the ranks were placed as {_placed(per_node)}, planned {_planned(plan.tasks_per_node)}"
    wrong = sorted(rank for rank, report in evidence.reports.items() if report.world_size != tasks)
    if wrong:
        sizes = sorted({evidence.reports[rank].world_size for rank in wrong})
        shown = ", ".join(map(str, sizes))
        yield f"{format_ranks(wrong)} saw a world of size {shown}, planned {tasks}"
    seen = Counter(report.world_rank for report in evidence.reports.values())
    twice = sorted(rank for rank, count in seen.items() if count > 1)
    if twice:
        yield f"several processes had the same rank in the framework's world: {format_ranks(twice)}"
    beyond = sorted(rank for rank in seen if rank >= tasks)
    if beyond:
        yield f"the framework's world has {format_ranks(beyond)}, which the plan has not"


def _placed(per_node: Counter[str]) -> str:
    """``n0: 3, n1: 1``; of many nodes those with the rarest numbers of ranks."""
    counts, is_long = Counter(per_node.values()), len(per_node) > _MOST_NODES
    ordered = sorted(per_node.items(), key=lambda item: (counts[item[1]], item[0]) if is_long else item)
    more = f" and {len(ordered) - _MOST_NODES} nodes more" if is_long else ""
    return ", ".join(f"{node}: {count}" for node, count in ordered[:_MOST_NODES]) + more


def _planned(tasks_per_node: tuple[int, ...]) -> str:
    """``4,4,2``; of many nodes ``4 on each of 300 nodes, 2 on each of 1``."""
    if len(tasks_per_node) <= _MOST_NODES:
        return ",".join(map(str, tasks_per_node))
    counts = sorted(Counter(tasks_per_node).items(), reverse=True)
    return ", ".join(f"{tasks} on each of {counted(nodes, 'node')}" for tasks, nodes in counts)


def _devices(evidence: Evidence) -> Iterable[str]:
    kind, uuids = evidence.plan.device, _reported_uuids(evidence)
    if kind == "cuda":
        # The launcher does not see the parts of a GPU (MIG); the framework that used one does.
        blind = [rank for rank, start in evidence.starts.items() if start.device_kind != "cuda" and rank not in uuids]
        if blind:
            yield f"{format_ranks(blind)} saw no GPU"
    wrong = sorted(rank for rank, report in evidence.reports.items() if report.device_kind != kind)
    if wrong and _claims_a_figure(evidence):
        yield f"{format_ranks(wrong)} did not compute on {kind} as planned"
    yield from _shared((uuid, rank) for rank, uuid in uuids.items())
    # Of the others only the launcher's view is known: what their framework calls a device may be the same name on every
    # rank that sees only its own.
    yield from _shared(
        (f"{start.device_uuid or f'index {index}'} on {evidence.nodes[rank]}", rank)
        for rank, start in evidence.starts.items()
        for index in [start.local_rank if start.device_index is None else start.device_index]
        if rank not in uuids
    )


def _shared(devices: Iterable[tuple[str, int]]) -> Iterable[str]:
    places: dict[str, list[int]] = {}
    for device, rank in devices:
        places.setdefault(device, []).append(rank)
    for device, ranks in sorted(places.items()):
        if len(ranks) > 1:
            yield f"{format_ranks(ranks)} shared one device ({device})"


def _synchronised(evidence: Evidence) -> Iterable[str]:
    """Equal weights prove nothing if every rank trained on the same data: gradients must have differed before."""
    absent = [rank for rank in range(evidence.plan.tasks) if rank not in evidence.reports]
    if absent:
        yield f"{format_ranks(absent)} left no report of the training"
        return
    reports = [evidence.reports[rank] for rank in range(evidence.plan.tasks)]
    if not metering.is_divided(evidence):
        yield from _equal_parameters(reports, coupled=evidence.plan.arms[-1] == "full")
    yield from _reduced(reports)
    if not all(report.onehot_ok for report in reports):
        yield "an allreduce of one-hot vectors did not give all ones"
    lost = [report.rank for report in reports if not report.loss_finite and not report.meter]
    if lost:
        yield f"the loss is not finite on {format_ranks(lost)}"
    lost = [report.rank for report in reports if report.meter and not report.parameters_finite]
    if lost:
        yield f"a parameter is not finite on {format_ranks(lost)}"
    if not all(report.parameters_moved for report in reports):
        yield "the parameters did not change in training"


def _equal_parameters(reports: Iterable[Report], *, coupled: bool) -> Iterable[str]:
    reports = list(reports)
    gradients = [report.gradient_checksum for report in reports]
    if not all(gradients):
        yield "not every rank says what its gradients were"
    elif len(set(gradients)) != len(gradients):
        yield "ranks had the same gradients before the first allreduce: they trained on the same data"
    parameters = {report.parameter_checksum for report in reports}
    if None in parameters:
        yield "not every rank says what its parameters are"
    elif len(parameters) > 1 and coupled:
        yield f"the ranks are not synchronised: {len(parameters)} different sets of parameters after the last step"


def _reduced(reports: Sequence[Report]) -> Iterable[str]:
    """Equal parameters do not show it: they may be gathered from parts, or one rank's gradients sent to all."""
    errors = [report.reduced_gradients_error for report in reports]
    known = [error for error in errors if error is not None]
    divided = any(report.sharded and report.synchronisation != "not-examined" for report in reports)
    if not known and not (divided and len(reports) > 1):
        return
    if len(known) < len(errors):
        yield "not every rank compared the reduced gradients with the ranks' own"
    elif max(known) > _REDUCED:
        yield (
            "the gradients were not reduced over all ranks: they are not the mean of the ranks' own (relative "
            f"difference {max(known):.2g})"
        )


def _figure(evidence: Evidence) -> Iterable[str]:
    result = evidence.result
    if result is None:
        yield "the program left no result"
        return
    if result.size != evidence.plan.tasks:
        yield f"the result is of a world of {result.size}, planned {evidence.plan.tasks}"
    for reason in result.proof_reasons:
        yield f"the program says: {reason}"
    yield from figures.faults(evidence)
    yield from arms.faults(evidence)


def _collectives(evidence: Evidence) -> Iterable[str]:
    """GPU gradients that travel by Gloo or MPI take a way through the host's memory, and end with 0 all the same."""
    plan = evidence.plan
    if plan.device != "cuda" or plan.tasks == 1 or plan.framework != "horovod":
        return
    without = sorted(rank for rank, report in evidence.reports.items() if not report.nccl_built)
    if without:
        yield f"{format_ranks(without)} ran a Horovod without NCCL: GPU data went through the host"
    elsewhere = sorted(
        rank for rank, report in evidence.reports.items() if report.gradients_device not in ("cuda", None)
    )
    if elsewhere:
        yield f"the gradients of {format_ranks(elsewhere)} were not on the GPU when they were reduced"


def _reported_uuids(evidence: Evidence) -> dict[int, str]:
    return {
        rank: report.device_uuid
        for rank, report in evidence.reports.items()
        if report.device_uuid is not None and report.device_uuid.startswith(DEVICE_UUIDS)
    }


def _good(evidence: Evidence) -> Verdict:
    plan = evidence.plan
    # With MPI the programs meet by themselves: only their framework's report shows that they did.
    has_met = plan.wireup not in BY_MPI or len(evidence.reports) == plan.tasks
    one = worlds.is_one(evidence)
    # A launcher that starts a program for a whole node met the other launchers; the ranks are the program's.
    met = "connected, " if has_met and one is not False and (one or plan.wireup != "own") else ""
    hosts, began = counted(plan.nodes, "host"), counted(plan.tasks, "rank" if plan.wireup != "own" else "launcher")
    proven = [f"{plan.tasks} of {began} started, {met}exited with 0, on {hosts}"]
    proven += worlds.proven(evidence)
    if plan.device == "cuda":
        proven.append(
            f"{plan.tasks} distinct devices, by the UUIDs that the framework reported"
            if len(_reported_uuids(evidence)) == plan.tasks
            else f"{plan.tasks} distinct devices as the launcher gave them to the ranks; the framework reported no "
            "UUIDs, so it is assumed that each rank used its own"
        )
        proven += device_state.unseen(evidence) if _claims_a_figure(evidence) else ()
    if not evidence.state.name:
        proven.append("the scheduler no longer knows the job; the batch script's own marker says 0")
    if not _claims_a_figure(evidence):
        remarks = (*worlds.remarks(evidence), *figures.without_figure(evidence))
        return Verdict(outcome="ran", proven=tuple(proven), remarks=remarks, demonstration=plan.demonstration)
    proven.append(f"every rank saw a world of {plan.tasks} and computed on {plan.device}")
    divided, arm = metering.is_divided(evidence), plan.arms[-1]
    if plan.tasks > 1 and not divided and arm == "full":
        proven.append(
            "synchronised: gradients differed before the first allreduce, parameters are equal after the last step"
            if evidence.reports[0].reduced_gradients_error is None
            else "synchronised: gradients differed, what the ranks reduced in one step was their mean, parameters are "
            "equal after the last step"
            if evidence.reports[0].meter and not evidence.reports[0].sharded
            else "synchronised: the ranks' own gradients differed, what they reduced was their mean in the first step, "
            "and the gathered parameters are equal after the last step"
        )
    ways = transport.proof(evidence)
    proven += ways.proven
    made = figures.figure(evidence)
    run = made.throughput
    demonstration = figures.why_demonstration(evidence, run)
    unit = metering.unit(evidence)
    figures_of_arms = arms.figures(evidence, made) if plan.arms != ("full",) else ()
    by_arm = {each.arm: each for each in figures_of_arms}
    steady = {"steady": True, "not steady": False, "cannot tell": None}[run.analysis.steady.verdict]
    return Verdict(
        outcome="measured",
        proven=tuple(proven),
        remarks=(
            *arms.remarks(arm),
            *figures.remarks(made, claims=not demonstration, unit=unit, longer=metering.longer(evidence)),
            *metering.remarks(evidence, run.samples_per_s),
            *ways.remarks,
            *device_state.remarks(evidence),
        ),
        unit=unit,
        varying_batch=metering.varies(evidence),
        synchronisation="not-examined" if divided and plan.tasks > 1 else "",
        batch=metering.batch(evidence),
        shared_batch=metering.shared_batch(evidence),
        disturbed=device_state.disturbance(evidence),
        gpu_energy_j_per_sample=device_state.energy_j_per_sample(evidence),
        transport=ways.state,
        # Ranks that do not wait for each other are as fast as they are, not as the slowest is.
        images_per_s=by_arm[arm].samples_per_s if arm == "uncoupled" else run.samples_per_s,
        uncut_images_per_s=by_arm[arm].samples_per_s if arm == "uncoupled" else run.uncut_samples_per_s,
        window_s=run.window_s,
        cut_steps=run.cut_steps,
        steady=steady,
        precision=None if run.low is None or run.high is None or arm == "uncoupled" else (run.low, run.high),
        demonstration=demonstration,
        arm=arm,
        mixed=mixture.hardware(evidence),
        arms=figures_of_arms if len(plan.arms) > 1 else (),
        sm_clock_mhz=device_state.sm_clock_mhz(evidence),
    )
