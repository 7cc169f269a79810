"""Why a run failed: which of its ends is the cause, by the scheduler, the container, the ranks and the script. Pure.

How each end is recognised, and which outcome it has, stands in ``runner.diagnosis.catalogue``.
"""

from __future__ import annotations

import math
import re
import signal
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import accumulate, islice

import msgspec

from runner.core.text import counted, first_of
from runner.diagnosis.catalogue import FAILURES, Failure, classify, find, state_cause
from runner.diagnosis.logs import IMAGE_LOST, ContainerFault
from runner.jobs.collect import Evidence
from runner.model.backends import SCHEDULERS, run_runtime
from runner.model.exit_codes import NODE_NOT_READY, RECORD_NOT_WRITTEN
from runner.model.records import ExitRecord
from runner.model.verdict import Outcome, Verdict

_OF_GPUS = re.compile(r"(?i)cuda|nccl|cudnn|cublas")  # a line that an error of a GPU may be behind
_DRIFT = 2e-5  # of clocks that nothing disciplines; quartz, seconds a second


@dataclass(frozen=True)
class _EndTime:
    """When a rank ended.

    Attributes:
        at_s: Unix time by rank 0's clock.
        error_s: of at_s against other nodes' times; infinite where their clocks were not compared.
    """

    node: str
    at_s: float
    error_s: float

    def gap_error_s(self, other: _EndTime) -> float:
        """The error of the time between two ends, seconds; 0 on one node, which has one clock."""
        return 0.0 if self.node == other.node else self.error_s + other.error_s


def _end_times(evidence: Evidence) -> dict[int, _EndTime]:
    """When each rank ended. Each has measured how far its node's clock is from rank 0's when it joined; of each node
    the best of its ranks' comparisons counts. Nothing else compares two nodes: the times of files are stamped by
    servers or by clients, whichever the file system pleases.
    """
    nodes = evidence.nodes
    offsets: dict[str, tuple[float, float]] = {}  # node -> error, offset
    for rank, start in evidence.starts.items():
        if start.clock_offset_s is not None and start.clock_error_s is not None:
            measured = (start.clock_error_s, start.clock_offset_s)
            offsets[nodes[rank]] = min(measured, offsets.get(nodes[rank], measured))
    times: dict[int, _EndTime] = {}
    for rank, record in evidence.exits.items():
        node = nodes.get(rank, record.host)
        error_s, offset_s = offsets.get(node, (math.inf, 0.0))
        age_s = 0.0 if record.started_s is None else max(record.ended_s - record.started_s, 0.0)
        times[rank] = _EndTime(node, record.ended_s + offset_s, error_s + _DRIFT * age_s)
    return times


# Signals that end a rank, where the launcher hands them on (its module `program`).
_ENDING = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGHUP})
_UNREACHED = re.compile(
    r"(?i)no route to host|connection (?:refused|timed out)|unreachable|cannot reach|unable to reach"
)
# Ends of a job by a user or by a limit: its ranks may have failed before.
_FROM_OUTSIDE = frozenset({"job-cancelled", "time-limit", "deadline-missed"})


def by_the_scheduler(evidence: Evidence) -> Verdict | None:
    """An end that the scheduler itself explains."""
    state = evidence.state
    if state.name == "KILLED" and evidence.cancelled and not evidence.starts:  # before its script knew that signal
        state = msgspec.structs.replace(state, name="CANCELLED")
    failure = find("scheduler state", state.name, f"{state.reason}{' begun' if evidence.hosts else ''}")
    if failure is None:
        return None
    where = f": {', '.join(evidence.failed_nodes)} failed" if evidence.failed_nodes else ""
    cancelled = evidence.cancelled
    by = f" by {cancelled.user} on {cancelled.host}, through `cancel` or Ctrl-C" if cancelled else ""
    reasons = [state_cause(failure, state, where=where, by=by)]
    reasons += filter(None, [failure.detail])
    crashed = _failed_before(evidence) if failure.code in _FROM_OUTSIDE else None
    if crashed is not None:
        reasons.append(f"before that, {_sentences(evidence, crashed)[0]}")
    elif failure.code == "time-limit":  # what hung processes say of those that they cannot reach
        unreached = filter(_UNREACHED.search, evidence.rank_quotes.values())
        reasons += [f"before that, in {quote}" for quote in islice(unreached, 1)]
    progress = _progress(evidence) if failure.outcome in ("failed", "cancelled") else []
    full = _disk_full(evidence) if failure.code == "job-killed" else None
    reasons += [*([full.cause] if full else []), *progress]
    # Ranks that srun could not start on their node: it waits for the others all the same, up to the time limit.
    ends = evidence.task_ends.items()
    missing = [rank for rank, end in ends if end.startswith("launch failed") and rank not in evidence.starts]
    if not missing or not progress:
        if failure.code == "time-limit" and evidence.plan.attempt:
            goes_on = "the chain's next attempt goes on from the newest checkpoint; with a longer --time less is lost"
            failure = replace(failure, fix=goes_on)
        verdict = failed_verdict(evidence, failure, reasons, rank=None if crashed is None else crashed.rank)
        # The scheduler ended it: programs that lost their image then tell nothing.
        return msgspec.structs.replace(verdict, log="") if IMAGE_LOST.search(verdict.log) else verdict
    first = _reported(evidence, missing[0])
    who = _these(evidence, missing) + _on_nodes(sorted({_node(evidence, rank) for rank in missing} - {""}))
    return failed_verdict(evidence, first, [first.cause.format(who=who, end=evidence.task_ends[missing[0]]), *reasons])


def by_the_container(evidence: Evidence) -> Verdict | None:
    """A container that did not start on some node, by the runtime's own line in the logs of that node.

    Of several causes the most specific counts, on all nodes that show it. A line that names no cause may be what
    another node's failure led to: of these that of the node counts of which srun reported a failure first.
    """
    faults = [fault for fault in evidence.container_faults if fault.failure.consequence == "no"]
    code = _code(evidence)
    # The batch script may have ended by itself before it came to any container.
    stopped_before = not evidence.starts and code != NODE_NOT_READY and find("batch script", str(code)) is not None
    if not faults or code == 0 or stopped_before:
        return None
    first = min(faults, key=lambda fault: FAILURES.index(fault.failure))
    if not first.is_specific:
        reported = list(evidence.task_nodes.values())
        elsewhere = reported[:1] and reported[0] not in {_fault_node(evidence, fault) for fault in faults}
        if elsewhere and _reported(evidence, next(iter(evidence.task_nodes))).consequence == "no":
            return None  # a rank failed in a container that had started, and these were stopped after it
        order = {node: reported.index(node) for node in reported}
        node = min((_fault_node(evidence, fault) for fault in faults), key=lambda node: order.get(node, len(reported)))
        faults = [fault for fault in faults if _fault_node(evidence, fault) == node]
        first = min(faults, key=lambda fault: FAILURES.index(fault.failure))
    same = [fault for fault in faults if fault.failure is first.failure]
    nodes = sorted({_fault_node(evidence, fault) for fault in same} - {""})
    known = {"before": "", "image": evidence.plan.image.path or evidence.plan.image.reference} | first.values
    where = " on any node" if len(nodes) == evidence.plan.nodes > 1 else _on_nodes(nodes)
    cause = first.failure.cause.format(where=where, **known)
    started = _progress(evidence) if evidence.starts else []
    verdict = failed_verdict(evidence, first.failure, [cause, *started])
    return msgspec.structs.replace(verdict, rank=first.rank, log=f"logs/{first.file}: {first.line}")


def _code(evidence: Evidence) -> int | None:
    """With what the job ended; None where that is unknown."""
    return evidence.marker.exit if evidence.marker is not None else evidence.state.exit_code


def _fault_node(evidence: Evidence, fault: ContainerFault) -> str:
    return fault.node or ("" if fault.rank is None else _node(evidence, fault.rank))


def _on_nodes(nodes: list[str], most: int = 4) -> str:
    """`` on dgx02``, for a sentence; of many nodes the first and how many more; nothing where none is known."""
    return f" on {first_of(nodes, most)}" if nodes else ""


def by_a_rank(evidence: Evidence) -> Verdict | None:
    """Ranks that ended badly; the cause is the first that no other rank's end explains."""
    failed = [record for record in evidence.exits.values() if record.status != 0]
    if not failed:
        return None
    causes = _causes(evidence)
    if not causes:
        return _ended_from_outside(evidence)
    first, rivals = _first(evidence, causes)
    failure, xids = _failure_of(evidence, first), list(_xids(evidence, first))
    if first.signal is not None or _OF_GPUS.search(evidence.rank_lines.get(first.rank, "")):
        failure = next((each for each, _ in xids if each.outcome == "infrastructure"), failure)
    reasons = [*_sentences(evidence, first), *(cause for _, cause in xids), *rivals, *_foreign_ranks(evidence)]
    if first.error == "rendezvous-timeout":  # for whom it waited, srun may know better
        reasons = [*_reported_ranks(evidence), *reasons]
    others = [record for record in failed if record is not first]
    stopped = [record.rank for record in others if _ended_by_others(evidence, record)]
    also = {record.rank for record in others}.difference(stopped)
    if stopped:
        reasons.append(f"{_these(evidence, stopped)} {'was' if len(stopped) == 1 else 'were'} then stopped too")
    if also:
        reasons.append(f"{_these(evidence, also)} failed too")
    reasons += [*_reported_ranks(evidence), *missing_records(evidence)]
    if first.error == "record-not-written" and (full := _disk_full(evidence)) is not None:
        failure, reasons = full, [*reasons, full.cause]
    return failed_verdict(evidence, failure, reasons, rank=first.rank)


def _xids(evidence: Evidence, record: ExitRecord) -> Iterator[tuple[Failure, str]]:
    """Errors of GPUs that the driver reported on the rank's node while its watcher ran."""
    for watched in evidence.watched.values():
        for xid in sorted(set(watched.xids)) if watched.host == record.host else ():
            failure = classify("GPU driver", str(xid))
            yield failure, failure.cause.format(host=watched.host, xid=xid)


def _causes(evidence: Evidence) -> list[ExitRecord]:
    without_image = _ranks_without_image(evidence)
    return [
        record
        for record in evidence.exits.values()
        if record.status != 0 and not _ended_by_others(evidence, record) and record.rank not in without_image
    ]


def _failed_before(evidence: Evidence) -> ExitRecord | None:
    """The rank that failed first, and before the job was ended from outside: before any rank that was stopped."""
    causes, times = _causes(evidence), _end_times(evidence)
    stopped_s = [times[rank].at_s for rank, record in evidence.exits.items() if _ended_by_others(evidence, record)]
    first = _first(evidence, causes)[0] if causes else None
    return first if first is not None and times[first.rank].at_s < min(stopped_s, default=math.inf) else None


def _first(evidence: Evidence, causes: list[ExitRecord]) -> tuple[ExitRecord, list[str]]:
    """The rank that failed first, and a sentence where another one may have been earlier.

    Of ranks whose order cannot be determined, one that a signal ended is the likelier cause: the others' exit codes
    tell of a broken connection.
    """
    times = _end_times(evidence)
    earliest = min((times[record.rank] for record in causes), key=lambda time: time.at_s)

    def may_be_first(record: ExitRecord) -> bool:
        own = times[record.rank]
        return own is earliest or (own.node != earliest.node and own.at_s - earliest.at_s <= own.gap_error_s(earliest))

    candidates = [record for record in causes if may_be_first(record)]
    first = min(candidates, key=lambda record: (record.signal is None, times[record.rank].at_s))
    rivals = [record.rank for record in candidates if record is not first]
    if not rivals:
        return first, []
    error_s = max(times[first.rank].gap_error_s(times[rival]) for rival in rivals)
    why = (
        f"the clocks of their nodes are known only to {error_s:.2g} s"
        if error_s < math.inf
        else "the clocks of their nodes were not compared"
    )
    either = f"{_these(evidence, [first.rank])} or {_these(evidence, rivals)}"
    return first, [f"it cannot be determined which failed first, {either}: {why}"]


def _ended_from_outside(evidence: Evidence) -> Verdict:
    """Every rank that failed was stopped: because of a rank without an exit record, or as srun waited in vain."""
    silent = _ranks_without_record(evidence)
    reasons = _reported_ranks(evidence)
    if not reasons and silent and any(record.status for record in evidence.exits.values()):
        # Killed, and the others were stopped after it.
        detail = _reported(evidence, silent[0]).detail.format(limit=_memory_limit(evidence))
        reasons = [_reported_sentence(evidence, silent[0]), *filter(None, [detail])]
    reasons += [*_progress(evidence), *missing_records(evidence)]
    failure = _reported(evidence, silent[0]) if silent else None
    return failed_verdict(evidence, failure or "failed", reasons, rank=silent[0] if silent else None)


def _ranks_without_record(evidence: Evidence) -> list[int]:
    """Ranks of which srun reports a bad end and that left no exit record; first those that failed by themselves."""
    silent = [rank for rank in evidence.task_ends if rank not in evidence.exits]
    order = ("no", "perhaps", "yes")
    return sorted(silent, key=lambda rank: order.index(_reported(evidence, rank).consequence))


def _reported_ranks(evidence: Evidence) -> list[str]:
    """What srun reports of ranks that left no record; without those that it stopped itself."""
    silent = _ranks_without_record(evidence)
    return [_reported_sentence(evidence, rank) for rank in silent if _reported(evidence, rank).consequence != "yes"]


def _reported(evidence: Evidence, rank: int) -> Failure:
    return classify("task starter", evidence.task_ends[rank], evidence.rank_lines.get(rank, ""))


def _reported_sentence(evidence: Evidence, rank: int) -> str:
    return _reported(evidence, rank).cause.format(who=_rank_name(evidence, rank), end=evidence.task_ends[rank])


def _progress(evidence: Evidence) -> list[str]:
    """Which ranks had not finished, and how far each had come."""
    stages: dict[str, list[int]] = {
        "never started": [],
        "waited for the others to start": [],
        "did not finish the program": [],
        "left a report, but did not finish the program": [],
    }
    never, waited, in_program, reported = stages.values()
    well = 0
    for rank in range(evidence.plan.tasks):
        record, start = evidence.exits.get(rank), evidence.starts.get(rank)
        if record is not None and not _ended_by_others(evidence, record):
            well += record.status == 0
        elif start is None:
            never.append(rank)
        elif not start.met:
            waited.append(rank)
        else:
            (reported if rank in evidence.reports else in_program).append(rank)
    sentences = [f"{_rank_names(evidence, ranks)} {stage}" for stage, ranks in stages.items() if ranks]
    if well:
        sentences.append(f"{well} of {counted(evidence.plan.tasks, 'rank')} exited with 0")
    return sentences


def _foreign_ranks(evidence: Evidence) -> list[str]:
    """Ranks that took themselves for another job step's, and so never met the others."""
    tokens = Counter(start.token for start in evidence.starts.values())
    failure = find("rank tokens", "differ" if len(tokens) > 1 else "agree")
    if failure is None:
        return []
    common = tokens.most_common(1)[0][0]
    others = [rank for rank, start in sorted(evidence.starts.items()) if start.token != common]
    return [failure.cause.format(ranks=_rank_names(evidence, others))]


def _disk_full(evidence: Evidence) -> Failure | None:
    return find("run directory", "full" if evidence.disk_full else "")


def by_the_script(evidence: Evidence) -> Verdict | None:
    """An end that no rank explains: by the batch script's own code, or by none."""
    state, marker = evidence.state, evidence.marker
    lost = find("end marker", "missing" if marker is None else "present", state.phase)
    if lost is not None:
        return failed_verdict(evidence, lost, [lost.cause])
    stopped = find("batch script", str(state.exit_code))
    if stopped is not None:
        verdict = failed_verdict(evidence, stopped, [stopped.cause])
        # Tasks that make nodes ready are numbered as the nodes are.
        for task, end in evidence.task_ends.items():
            if end.startswith("launch failed") and stopped.code == "node-not-ready" and task < len(evidence.hosts):
                not_launched = classify("task starter", end)
                cause = not_launched.cause.format(who=f"the task that makes {evidence.hosts[task]} ready", end=end)
                return failed_verdict(evidence, not_launched, [cause])
        node = next((node for node in evidence.task_nodes.values() if node in evidence.node_lines), "")
        line = f"logs/node-{node}.log: {evidence.node_lines[node]}" if node else verdict.log
        return msgspec.structs.replace(verdict, log=line)
    if code := marker.exit if marker else state.exit_code:
        return _with_code(evidence, code)
    unexplained = find("unexplained state", state.name)
    if unexplained is not None:
        return failed_verdict(evidence, unexplained, [unexplained.cause.format(state=state.name)])
    return None


def _with_code(evidence: Evidence, code: int) -> Verdict:
    """The batch script ended with a code that no rank's record explains."""
    lost = next((fault for fault in evidence.container_faults if fault.failure.consequence == "perhaps"), None)
    if lost is not None and not _reported_ranks(evidence):
        cause = lost.failure.cause.format(where="", image="", **lost.values)
        verdict = failed_verdict(evidence, lost.failure, [cause])
        return msgspec.structs.replace(verdict, log=f"logs/{lost.file}: {lost.line}")
    # Where the disk is full the job could not write, whatever code it ended with.
    failure = classify("job exit code", str(RECORD_NOT_WRITTEN if evidence.disk_full else code), evidence.batch_line)
    cause = failure.cause.format(code=code, node=next(iter(evidence.hosts), "the job's first node"))
    if failure.outcome == "infrastructure":
        full = _disk_full(evidence)
        return failed_verdict(evidence, full or failure, [cause, *([full.cause] if full else [])])
    if _ranks_without_record(evidence):
        return _ended_from_outside(evidence)
    return failed_verdict(evidence, failure, [cause, *missing_records(evidence)])


def _failure_of(evidence: Evidence, record: ExitRecord) -> Failure:
    if record.error is not None:
        return classify("launcher error", record.error, record.message)
    line = evidence.rank_lines.get(record.rank, "")
    if record.signal is not None:
        reported = f"{evidence.task_ends.get(record.rank, '')} {line}"
        ended = classify("program signal", _signal_name(record.signal), reported)
    else:
        ended = classify("program exit code", str(record.exit_code), line)
    said = find("program log", line) if ended.consequence == "no" else None
    return said or ended


def _ended_by_others(evidence: Evidence, record: ExitRecord) -> bool:
    # A warning that the time limit is near (SIGUSR1) ends no rank: one that crashes after it crashed by itself.
    return _failure_of(evidence, record).consequence == "yes" or not _ENDING.isdisjoint(record.signals_forwarded)


def _ranks_without_image(evidence: Evidence) -> set[int]:
    """Ranks that ended as another of their node, which may have served the image to them, left no record."""
    ended = [
        rank
        for rank, record in evidence.exits.items()
        if record.status != 0 and _failure_of(evidence, record).consequence == "perhaps"
    ]
    silent = _ranks_without_record(evidence) if ended else []
    if any(rank not in evidence.nodes for rank in silent):
        return set(ended)
    nodes = {evidence.nodes[rank] for rank in silent}
    return {rank for rank in ended if _node(evidence, rank) in nodes}


def _sentences(evidence: Evidence, record: ExitRecord) -> list[str]:
    failure, start = _failure_of(evidence, record), evidence.starts.get(record.rank)
    in_line = re.search(failure.pattern, evidence.rank_lines.get(record.rank, ""))
    is_container, path = (
        run_runtime(evidence.plan.runtime).is_container,
        start.environment.get("PATH", "") if start else "",
    )
    program = evidence.plan.program[0]
    found_by = f"of {program}" if "/" in program else f"of {program}, the first in PATH ({path})"
    if evidence.plan.python is not None:
        found_by = f"of {evidence.plan.python.prefix}/bin/python3"
    known = {
        **(in_line.groupdict() if in_line else {}),
        "end": f"exited with code {record.exit_code}"
        if record.signal is None
        else f"was ended by signal {record.signal} ({_signal_name(record.signal)})",
        "environment": f"the image {evidence.plan.image.reference}" if is_container else f"the environment {found_by}",
        "who": _rank_name(evidence, record.rank),
        "error": record.error,
        "message": record.message,
        "signal": record.signal,
        "name": _signal_name(record.signal or 0),
        "code": record.exit_code,
        "rss_mib": record.max_rss_bytes / 2**20,
        "place": "the image" if is_container else "the environment",
        "limit": _memory_limit(evidence),
    }
    return [sentence.format_map(known) for sentence in (failure.cause, failure.detail) if sentence]


def _memory_limit(evidence: Evidence) -> str:
    plan = evidence.plan
    options = SCHEDULERS[plan.scheduler].memory_options
    for option, value in plan.directives:
        if option in options:
            return f"; the job asked for {option}={value}"
    memory_mb = plan.memory_mb
    return f"; the job has {memory_mb} MiB on each node" if memory_mb else "; the job has all memory of its nodes"


def missing_records(evidence: Evidence) -> list[str]:
    """A sentence for each kind of record that not every planned rank has left."""
    sentences = []
    for kind, records in (("start", evidence.starts), ("exit", evidence.exits)):
        if missing := [rank for rank in range(evidence.plan.tasks) if rank not in records]:
            sentences.append(f"no {kind} record of {_these(evidence, missing)}")
    return sentences


def failed_verdict(
    evidence: Evidence, failure: Failure | Outcome, reasons: list[str], *, rank: int | None = None
) -> Verdict:
    """A verdict that is not good, by the failure that decided it, or of an outcome that no single one did.

    Its log line is that of ``rank``, or the batch script's where it has none.
    """
    log = f"logs/batch.err: {evidence.batch_line}" if evidence.batch_line else ""
    log = log if rank is None else evidence.rank_quotes.get(rank, log)
    verdict = Verdict(
        outcome=failure.outcome if isinstance(failure, Failure) else failure,
        reasons=tuple(dict.fromkeys(reasons)),
        demonstration=evidence.plan.demonstration,
        log=log,
        rank=rank,
    )
    if not isinstance(failure, Failure):
        return verdict
    # What tells the memory that the ranks used.
    marker, plan = evidence.marker, evidence.plan
    job = marker.job if marker is not None else next((start.job_id for start in evidence.starts.values()), "")
    command = SCHEDULERS[plan.scheduler].memory_used if plan.existing_allocation is None else ""
    max_rss = f"`{command.format(job=job)}`" if command and job else "named above"
    fix = failure.fix.replace("{driver}", run_runtime(plan.runtime).driver).replace("{maxrss}", max_rss)
    return msgspec.structs.replace(verdict, fix=fix, who=failure.who)


def _rank_name(evidence: Evidence, rank: int) -> str:
    """``rank 3 on dgx02``, as far as its host is known; ``start 0 of torchrun``, which has ranks of its own."""
    node, starters = _node(evidence, rank), evidence.plan.starters
    name = f"start {rank} of {starters[0].name}" if starters else f"rank {rank}"
    return f"{name} on {node}" if node else name


def _node(evidence: Evidence, rank: int) -> str:
    """The rank's node, by its own records, by srun's report, or by the plan; empty where it is unknown."""
    record = evidence.exits.get(rank)
    if rank in evidence.nodes or record is not None:
        return evidence.nodes.get(rank, record.host if record is not None else "")
    if rank in evidence.task_nodes:
        return evidence.task_nodes[rank]
    counts = evidence.plan.tasks_per_node
    if len(evidence.hosts) != len(counts) or evidence.plan.settings.places_ranks:
        return ""
    return next(host for host, end in zip(evidence.hosts, accumulate(counts), strict=True) if rank < end)


def _rank_names(evidence: Evidence, ranks: list[int]) -> str:
    return _rank_name(evidence, ranks[0]) if len(ranks) == 1 else _these(evidence, ranks)


def _these(evidence: Evidence, ranks: Iterable[int]) -> str:
    """``ranks 0, 2``; ``starts 0, 2``, as in ``_rank_name``."""
    return format_ranks(ranks, noun="start" if evidence.plan.starters else "rank")


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return "unknown"


def format_ranks(ranks: Iterable[int], most: int = 8, *, noun: str = "rank") -> str:
    """``rank 3``, ``ranks 0, 2``, or the first ``most`` of them and how many more there are."""
    ordered = [str(rank) for rank in sorted(ranks)]
    return f"{noun}{'' if len(ordered) == 1 else 's'} {first_of(ordered, most)}"
