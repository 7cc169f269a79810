"""The verdict: what a run that has ended is worth. A pure function of the evidence.

Success is proven, never assumed: the scheduler says the job completed; every planned rank began, met the others,
and ended with status 0; the framework saw the planned world; ranks sit on distinct devices of the planned kind; and
where a throughput is claimed, gradients differed before the first allreduce, parameters are equal at the end, and
the figure is the one that the ranks' own records give.
"""

from __future__ import annotations

import math
import re
import signal
from collections import Counter
from collections.abc import Iterable

from runner.jobs.collect import Evidence
from runner.model.records import Exit
from runner.model.verdict import Outcome, Verdict

_INFRASTRUCTURE = frozenset({"NODE_FAIL", "BOOT_FAIL", "PREEMPTED", "LAUNCH_FAILED", "RECONFIG_FAIL", "REVOKED"})
# What keeps a launcher from starting its program that another node or another time may not.
_NOT_THE_PROGRAMS = frozenset(
    {"rendezvous-port-taken", "rendezvous-address", "rendezvous-timeout", "record-not-written"}
)
_RECORD_NOT_WRITTEN = 116  # the launcher's exit status for it (recipes/lib/launch.py)
_CAUSES = {
    "TIMEOUT": "the job ran into its time limit",
    "DEADLINE": "the job missed its deadline",
    "OUT_OF_MEMORY": "the job ran out of memory",
    "CANCELLED": "the job was cancelled",
}
# The batch script's own exit codes (runner.schedulers.slurm_script).
_SCRIPT = {
    71: "the container could not be made on every node",
    72: "the run directory was not to be seen on the first node",
    73: "the allocation's nodes were not the planned ones",
}
# kill-on-bad-exit and time limits end the other ranks so: not the cause. A SIGKILL of theirs takes the launcher, too,
# so a program that was killed and whose launcher could tell of it was killed by itself, by the kernel for one.
_ENDED_BY_OTHERS = (int(signal.SIGTERM),)
# srun's words for tasks that it, the time limit or a person ended.
_SRUN_ENDED_IT = frozenset({"Killed", "Terminated"})
# How far a rank had come that did not end by itself, the least first.
_STAGES = (
    _NEVER_STARTED := "never started",
    _WAITED := "waited for the others to start",
    _IN_PROGRAM := "never came out of the program",
    _REPORTED := "left a report, and never came out of the program",
)
_DISK_FULL = "the disk of the run directory is full"
_SAME = 1e-6  # relative difference of two figures that are the same


def judge(evidence: Evidence) -> Verdict:
    """The verdict. The first stage that finds a fault decides the outcome."""
    for stage in (_scheduler, _ranks_failed, _batch_failed, _unproven):
        verdict = stage(evidence)
        if verdict is not None:
            return verdict
    return _good(evidence)


def _scheduler(evidence: Evidence) -> Verdict | None:
    """An end that the scheduler itself explains."""
    name, reason = evidence.state.name, evidence.state.reason
    if name in _INFRASTRUCTURE:
        nodes = f" on {evidence.state.nodes}" if evidence.state.nodes else ""
        if evidence.failed_nodes:
            nodes = f": {', '.join(evidence.failed_nodes)} failed under it"
        return _bad(
            evidence, "infrastructure", [f"the scheduler says {name}{nodes}" + (f" ({reason})" if reason else "")]
        )
    if name == "CANCELLED":
        return _bad(evidence, "failed", [_cancelled(evidence), *_left(evidence)])
    if name in _CAUSES:
        return _bad(evidence, "failed", [_CAUSES[name], *_left(evidence)])
    return None


def _cancelled(evidence: Evidence) -> str:
    """By whom, as far as anybody keeps account of it."""
    by = evidence.state.reason if evidence.state.reason.startswith("by ") else ""
    asked = evidence.cancelled
    if asked is not None:
        by = f"by {asked.user} on {asked.host}, through `cancel` or Ctrl-C"
    return f"{_CAUSES['CANCELLED']}{' ' + by if by else '; the scheduler does not say by whom'}"


def _ranks_failed(evidence: Evidence) -> Verdict | None:
    """Ranks that ended badly; the cause is the first that no other rank's end explains."""
    bad = sorted(
        (record for record in evidence.exits.values() if record.status != 0), key=lambda record: record.ended_s
    )
    if not bad:
        return None
    first = next((record for record in bad if not _ended_by_others(record)), None)
    if first is None:
        return _ended_from_outside(evidence)
    reasons = [_how(first), *_memory(evidence, first)]
    others = [record.rank for record in bad if record.rank != first.rank]
    if others:
        reasons.append(f"{len(others)} other ranks ended with it ({_some(others)})")
    reasons += [*_silent(evidence), *_missing(evidence)]
    if first.error == "record-not-written" and evidence.disk_full:
        reasons.append(_DISK_FULL)
    outcome: Outcome = "failed"
    if first.error == "world-mismatch":
        outcome = "not-proven"
    elif first.error in _NOT_THE_PROGRAMS:
        outcome = "infrastructure"
    return _bad(evidence, outcome, reasons, rank=first.rank)


def _ended_from_outside(evidence: Evidence) -> Verdict:
    """Every rank that ended badly was made to: by a rank that left no word, or by srun that waited for it in vain."""
    speechless = _speechless(evidence)
    reasons = _silent(evidence)
    if not reasons and speechless and any(record.status for record in evidence.exits.values()):
        reasons = [_says(evidence, speechless[0])]  # killed, and the others were ended after it
    reasons += [*_left(evidence), *_missing(evidence)]
    return _bad(evidence, "failed", reasons, rank=speechless[0] if speechless else None)


def _speechless(evidence: Evidence) -> list[int]:
    """Ranks of which srun tells a bad end and that left no exit record; first those that ended of themselves."""
    known = [rank for rank in evidence.task_ends if rank not in evidence.exits]
    return sorted(known, key=lambda rank: evidence.task_ends[rank] in _SRUN_ENDED_IT)


def _silent(evidence: Evidence) -> list[str]:
    """What srun says of ranks that could not say it themselves. Those that it killed with the others are no news."""
    return [_says(evidence, rank) for rank in _speechless(evidence) if evidence.task_ends[rank] not in _SRUN_ENDED_IT]


def _says(evidence: Evidence, rank: int) -> str:
    return f"{_who(evidence, rank)} left no exit record; srun says: {evidence.task_ends[rank]}"


def _left(evidence: Evidence) -> list[str]:
    """Which ranks had not ended by themselves, and how far each had come."""
    stages: dict[str, list[int]] = {}
    well = 0
    for rank in range(evidence.plan.tasks):
        record, start = evidence.exits.get(rank), evidence.starts.get(rank)
        if record is not None and not _ended_by_others(record):
            well += record.status == 0
        elif start is None:
            stages.setdefault(_NEVER_STARTED, []).append(rank)
        elif not start.met:
            stages.setdefault(_WAITED, []).append(rank)
        elif rank not in evidence.reports:
            stages.setdefault(_IN_PROGRAM, []).append(rank)
        else:
            stages.setdefault(_REPORTED, []).append(rank)
    sentences = [f"{_these(evidence, stages[stage])} {stage}" for stage in _STAGES if stage in stages]
    if well:
        sentences.append(f"{well} of {evidence.plan.tasks} ranks ended with status 0")
    return sentences


def _memory(evidence: Evidence, record: Exit) -> list[str]:
    """The kernel's killer takes a program by SIGKILL, and slurmstepd or srun tell of it."""
    told = f"{evidence.task_ends.get(record.rank, '')} {evidence.rank_words.get(record.rank, '')}".lower()
    if record.signal != signal.SIGKILL or not re.search(r"out of memory|oom.kill", told):
        return []
    limit = f"; the job has {evidence.plan.memory_mb} MiB on each node" if evidence.plan.memory_mb else ""
    return [f"it ran out of memory: the kernel ended it at {record.max_rss_bytes / 2**20:.0f} MiB{limit}"]


def _batch_failed(evidence: Evidence) -> Verdict | None:
    """An end that no rank explains: by the batch script's own code, or by none."""
    state, marker = evidence.state, evidence.marker
    if marker is None and state.phase == "unknown":
        return _bad(evidence, "unknown", ["the scheduler does not know the job, and its script left no end marker"])
    if state.exit_code in _SCRIPT:
        return _bad(evidence, "infrastructure", [_SCRIPT[state.exit_code]])
    code = marker.exit if marker else state.exit_code
    if code:
        return _with_code(evidence, code)
    if state.name not in ("", "COMPLETED"):
        return _bad(evidence, "unknown", [f"the scheduler says {state.name}, and no rank says why"])
    return None


def _with_code(evidence: Evidence, code: int) -> Verdict:
    """The batch script ended with a code that no rank's record explains."""
    if evidence.container_words:
        return _bad(evidence, "infrastructure", ["the container did not start on any node", evidence.container_words])
    if code == _RECORD_NOT_WRITTEN or evidence.disk_full:
        reasons = [f"the job could not write to its run directory (exit code {code})"]
        return _bad(evidence, "infrastructure", [*reasons, *([_DISK_FULL] if evidence.disk_full else ())])
    if _speechless(evidence):
        return _ended_from_outside(evidence)
    return _bad(evidence, "failed", [f"the job ended with exit code {code}", *_missing(evidence)])


def _unproven(evidence: Evidence) -> Verdict | None:
    """It ran: is what it claims proven?"""
    faults = [*_incomplete(evidence), *_world(evidence), *_devices(evidence)]
    if evidence.plan.result == "throughput":
        faults += [*_transport(evidence), *_synchronised(evidence), *_figure(evidence)]
    return _bad(evidence, "not-proven", faults) if faults else None


def _ended_by_others(record: Exit) -> bool:
    return record.signal in _ENDED_BY_OTHERS or record.error == "stopped-before-start" or bool(record.signals_forwarded)


def _how(record: Exit) -> str:
    who = f"rank {record.rank} on {record.host}"
    if record.error is not None:
        return f"{who} did not start its program: {record.error}: {record.message}"
    if record.signal is not None:
        return f"{who} was ended by signal {record.signal} ({_signal_name(record.signal)})"
    return f"{who} exited with code {record.exit_code}"


def _incomplete(evidence: Evidence) -> Iterable[str]:
    """Records that are missing, damaged or too many."""
    for sentence in evidence.damaged:
        yield f"a record cannot be read: {sentence}"
    yield from _missing(evidence)
    for kind, records in (("start", evidence.starts), ("exit", evidence.exits), ("report", evidence.reports)):
        beyond = [rank for rank in records if rank >= evidence.plan.tasks]
        if beyond:
            yield f"{kind} records of ranks that were not planned: {_some(beyond)}"


def _missing(evidence: Evidence) -> list[str]:
    planned = range(evidence.plan.tasks)
    lost = []
    for kind, records in (("start", evidence.starts), ("exit", evidence.exits)):
        absent = [rank for rank in planned if rank not in records]
        if absent:
            lost.append(f"no {kind} record of {len(absent)} of {evidence.plan.tasks} ranks: {_some(absent)}")
    return lost


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
        yield f"{len(wrong)} ranks saw a world of size {shown}, planned {plan.tasks}: {_some(wrong)}"
    seen = Counter(report.world_rank for report in evidence.reports.values())
    twice = sorted(rank for rank, count in seen.items() if count > 1)
    if twice:
        yield f"several processes were the same rank of the framework's world: {_some(twice)}"


def _devices(evidence: Evidence) -> Iterable[str]:
    """Every rank on a device of its own, of the planned kind."""
    kind = evidence.plan.device
    if kind == "cuda":
        blind = [rank for rank, start in evidence.starts.items() if start.device_kind != "cuda"]
        if blind:
            yield f"{len(blind)} ranks saw no GPU: {_some(blind)}"
    wrong = sorted(rank for rank, report in evidence.reports.items() if report.device_kind != kind)
    if wrong and evidence.plan.result == "throughput":
        yield f"{len(wrong)} ranks did not compute on {kind} as planned: {_some(wrong)}"
    places: dict[tuple[str, str], list[int]] = {}
    for rank, start in evidence.starts.items():
        report = evidence.reports.get(rank)
        uuid = (report.device_uuid if report else None) or start.device_uuid
        device = uuid or (f"index {start.local_rank}" if start.device_index is None else f"index {start.device_index}")
        places.setdefault((start.host, device), []).append(rank)
    for (host, device), ranks in sorted(places.items()):
        if len(ranks) > 1:
            yield f"ranks {_some(ranks)} shared one device ({device} on {host})"


def _transport(evidence: Evidence) -> Iterable[str]:
    """GPUs of several nodes that talk through sockets are slow and end with 0 all the same."""
    plan = evidence.plan
    if plan.device == "cuda" and plan.nodes > 1 and "Socket" in evidence.networks:
        yield "NCCL used sockets between nodes, not the fabric (see nccl/)"


def _synchronised(evidence: Evidence) -> Iterable[str]:
    """Equal weights prove nothing if every rank trained on the same data: gradients must have differed before."""
    reports = [evidence.reports[rank] for rank in sorted(evidence.reports) if rank < evidence.plan.tasks]
    absent = [rank for rank in range(evidence.plan.tasks) if rank not in evidence.reports]
    if absent:
        yield f"{len(absent)} ranks left no report of their training: {_some(absent)}"
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
        yield f"the loss is not finite on ranks {_some(lost)}"
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
        yield "the ranks' reports do not hold what a throughput is made of"
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
    proven = [
        f"{plan.tasks} of {plan.tasks} ranks began, met, and ended with status 0, on {plan.nodes} hosts",
    ]
    if plan.device == "cuda":
        proven.append(f"{plan.tasks} distinct (host, device) pairs")
    if not evidence.state.name:
        proven.append("the scheduler no longer knows the job; the batch script's own marker says 0")
    if plan.result != "throughput":
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


def _bad(evidence: Evidence, outcome: Outcome, reasons: list[str], *, rank: int | None = None) -> Verdict:
    """A verdict that is not good; its log line is that of ``rank``, or the batch script's where it has none."""
    log = f"logs/batch.err: {evidence.batch_words}" if evidence.batch_words else ""
    words = "" if rank is None else evidence.rank_words.get(rank, "")
    if words:
        log = f"logs/rank-{rank}.err: {words}"
    return Verdict(
        outcome=outcome, reasons=tuple(dict.fromkeys(reasons)), demonstration=evidence.plan.demonstration, log=log
    )


def _who(evidence: Evidence, rank: int) -> str:
    """``rank 3 on dgx02``, as far as its host is known."""
    start = evidence.starts.get(rank)
    return f"rank {rank} on {start.host}" if start is not None else f"rank {rank}"


def _these(evidence: Evidence, ranks: list[int]) -> str:
    return _who(evidence, ranks[0]) if len(ranks) == 1 else f"{len(ranks)} ranks ({_some(ranks)})"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return "unknown"


def _some(ranks: Iterable[int], most: int = 8) -> str:
    listed = sorted(ranks)
    shown = ", ".join(str(rank) for rank in listed[:most])
    return shown + (f" and {len(listed) - most} more" if len(listed) > most else "")
