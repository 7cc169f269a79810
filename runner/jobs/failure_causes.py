"""How a run ended that did not end well: what the scheduler says of it, the ranks' own records, and srun.

Each stage gives a verdict, or None where it finds nothing amiss. Pure functions of the evidence.
"""

from __future__ import annotations

import re
import signal
from collections import Counter
from collections.abc import Iterable

from runner.jobs.collect import Evidence
from runner.model.exit_codes import CANCELLED, RECORD_NOT_WRITTEN, TIMED_OUT, codes
from runner.model.records import Exit
from runner.model.verdict import Outcome, Verdict

_INFRASTRUCTURE = frozenset({"NODE_FAIL", "BOOT_FAIL", "PREEMPTED", "LAUNCH_FAILED", "RECONFIG_FAIL", "REVOKED"})
# What keeps a launcher from starting its program that another node or another time may not.
_NOT_THE_PROGRAMS = frozenset(
    {"rendezvous-port-taken", "rendezvous-address", "rendezvous-timeout", "record-not-written"}
)
_CAUSES = {
    "TIMEOUT": "the job ran into its time limit",
    "DEADLINE": "the job missed its deadline",
    "OUT_OF_MEMORY": "the job ran out of memory",
    "CANCELLED": "the job was cancelled",
    "KILLED": "the job was killed outright: its script left no end marker",
}
_SCRIPT = {code: entry.meaning for code, entry in codes("batch script").items() if code not in (TIMED_OUT, CANCELLED)}
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


def by_the_scheduler(evidence: Evidence) -> Verdict | None:
    """An end that the scheduler itself explains."""
    name, reason = evidence.state.name, evidence.state.reason
    if name in _INFRASTRUCTURE:
        nodes = f" on {evidence.state.nodes}" if evidence.state.nodes else ""
        if evidence.failed_nodes:
            nodes = f": {', '.join(evidence.failed_nodes)} failed under it"
        return bad(
            evidence, "infrastructure", [f"the scheduler says {name}{nodes}" + (f" ({reason})" if reason else "")]
        )
    if reason == "JobLaunchFailure":  # Slurm's, where slurmstepd cannot open the script's output (ExitCode 0:53)
        sentence = f"the scheduler could not begin the script on {evidence.state.nodes} (JobLaunchFailure)"
        hint = "its node sees no such run directory, or may not write there"
        return bad(evidence, "infrastructure", [sentence, hint])
    if name == "CANCELLED":
        return bad(evidence, "failed", [_cancelled(evidence), *_left(evidence)])
    if name in _CAUSES:
        return bad(evidence, "failed", [_CAUSES[name], *_left(evidence)])
    return None


def _cancelled(evidence: Evidence) -> str:
    """By whom, as far as anybody keeps account of it."""
    by = evidence.state.reason if evidence.state.reason.startswith("by ") else ""
    asked = evidence.cancelled
    if asked is not None:
        by = f"by {asked.user} on {asked.host}, through `cancel` or Ctrl-C"
    return f"{_CAUSES['CANCELLED']}{' ' + by if by else '; the scheduler does not say by whom'}"


def by_a_rank(evidence: Evidence) -> Verdict | None:
    """Ranks that ended badly; the cause is the first that no other rank's end explains."""
    failed = sorted(
        (record for record in evidence.exits.values() if record.status != 0), key=lambda record: record.ended_s
    )
    if not failed:
        return None
    first = next(
        (record for record in failed if not _ended_by_others(record) and not _lost_its_image(evidence, record)), None
    )
    if first is None:
        return _ended_from_outside(evidence)
    reasons = [_how(first), *_memory(evidence, first), *_strangers(evidence)]
    if first.error == "rendezvous-timeout":  # for whom it waited, srun may know better
        reasons = [*_silent(evidence), *reasons]
    others = [record.rank for record in failed if record.rank != first.rank]
    if others:
        reasons.append(f"{len(others)} other ranks ended with it ({some(others)})")
    reasons += [*_silent(evidence), *missing(evidence)]
    if first.error == "record-not-written" and evidence.disk_full:
        reasons.append(_DISK_FULL)
    outcome: Outcome = "failed"
    if first.error == "world-mismatch":
        outcome = "not-proven"
    elif first.error in _NOT_THE_PROGRAMS:
        outcome = "infrastructure"
    return bad(evidence, outcome, reasons, rank=first.rank)


def _ended_from_outside(evidence: Evidence) -> Verdict:
    """Every rank that ended badly was made to: by a rank that left no word, or by srun that waited for it in vain."""
    speechless = _speechless(evidence)
    reasons = _silent(evidence)
    if not reasons and speechless and any(record.status for record in evidence.exits.values()):
        reasons = [_says(evidence, speechless[0])]  # killed, and the others were ended after it
    reasons += [*_left(evidence), *missing(evidence)]
    return bad(evidence, "failed", reasons, rank=speechless[0] if speechless else None)


def _speechless(evidence: Evidence) -> list[int]:
    """Ranks of which srun tells a bad end and that left no exit record; first those that ended of themselves."""
    known = [rank for rank in evidence.task_ends if rank not in evidence.exits]
    order = {"Bus error": 1, **dict.fromkeys(_SRUN_ENDED_IT, 2)}  # a bus error may well be the image's going away
    return sorted(known, key=lambda rank: order.get(evidence.task_ends[rank], 0))


def _silent(evidence: Evidence) -> list[str]:
    """What srun says of ranks that could not say it themselves. Those that it killed with the others are no news."""
    return [_says(evidence, rank) for rank in _speechless(evidence) if evidence.task_ends[rank] not in _SRUN_ENDED_IT]


def _says(evidence: Evidence, rank: int) -> str:
    end = evidence.task_ends[rank]
    hint = " (its node may not write to logs/ in the run directory)" if "could not connect IO" in end else ""
    return f"{_who(evidence, rank)} left no exit record; srun says: {end}{hint}"


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


def _strangers(evidence: Evidence) -> list[str]:
    """Ranks that took themselves for another job step's, and so never met the others."""
    tokens = Counter(start.token for start in evidence.starts.values())
    if len(tokens) < 2:
        return []
    common = tokens.most_common(1)[0][0]
    odd = [rank for rank, start in sorted(evidence.starts.items()) if start.token != common]
    return [f"{_these(evidence, odd)} came with the token of another job step"]


def _memory(evidence: Evidence, record: Exit) -> list[str]:
    """The kernel's killer takes a program by SIGKILL, and slurmstepd or srun tell of it."""
    told = f"{evidence.task_ends.get(record.rank, '')} {evidence.rank_words.get(record.rank, '')}".lower()
    if record.signal != signal.SIGKILL or not re.search(r"out of memory|oom.kill", told):
        return []
    limit = f"; the job has {evidence.plan.memory_mb} MiB on each node" if evidence.plan.memory_mb else ""
    return [f"it ran out of memory: the kernel ended it at {record.max_rss_bytes / 2**20:.0f} MiB{limit}"]


def by_the_script(evidence: Evidence) -> Verdict | None:
    """An end that no rank explains: by the batch script's own code, or by none."""
    state, marker = evidence.state, evidence.marker
    if marker is None and state.phase == "unknown":
        return bad(evidence, "unknown", ["the scheduler does not know the job, and its script left no end marker"])
    if state.exit_code in _SCRIPT:
        return bad(evidence, "infrastructure", [_SCRIPT[state.exit_code], *filter(None, [evidence.container_words])])
    code = marker.exit if marker else state.exit_code
    if code:
        return _with_code(evidence, code)
    if state.name not in ("", "COMPLETED"):
        return bad(evidence, "unknown", [f"the scheduler says {state.name}, and no rank says why"])
    return None


def _with_code(evidence: Evidence, code: int) -> Verdict:
    """The batch script ended with a code that no rank's record explains."""
    if evidence.container_words:
        return bad(evidence, "infrastructure", ["the container did not start on any node", evidence.container_words])
    if code == RECORD_NOT_WRITTEN or evidence.disk_full:
        reasons = [f"the job could not write to its run directory (exit code {code})"]
        return bad(evidence, "infrastructure", [*reasons, *([_DISK_FULL] if evidence.disk_full else ())])
    if _speechless(evidence):
        return _ended_from_outside(evidence)
    return bad(evidence, "failed", [f"the job ended with exit code {code}", *missing(evidence)])


def _ended_by_others(record: Exit) -> bool:
    return record.signal in _ENDED_BY_OTHERS or record.error == "stopped-before-start" or bool(record.signals_forwarded)


def _lost_its_image(evidence: Evidence, record: Exit) -> bool:
    """Whether the rank met a SIGBUS as another of its node, which may have served the image to it, left no word."""
    if record.signal != signal.SIGBUS:
        return False
    starts = evidence.starts
    return any(rank not in starts or starts[rank].host == record.host for rank in _speechless(evidence))


def _how(record: Exit) -> str:
    who = f"rank {record.rank} on {record.host}"
    if record.error is not None:
        return f"{who} did not start its program: {record.error}: {record.message}"
    if record.signal is not None:
        return f"{who} was ended by signal {record.signal} ({_signal_name(record.signal)})"
    return f"{who} exited with code {record.exit_code}"


def missing(evidence: Evidence) -> list[str]:
    planned = range(evidence.plan.tasks)
    lost = []
    for kind, records in (("start", evidence.starts), ("exit", evidence.exits)):
        absent = [rank for rank in planned if rank not in records]
        if absent:
            lost.append(f"no {kind} record of {len(absent)} of {evidence.plan.tasks} ranks: {some(absent)}")
    return lost


def bad(evidence: Evidence, outcome: Outcome, reasons: list[str], *, rank: int | None = None) -> Verdict:
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
    return _who(evidence, ranks[0]) if len(ranks) == 1 else f"{len(ranks)} ranks ({some(ranks)})"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return "unknown"


def some(ranks: Iterable[int], most: int = 8) -> str:
    listed = sorted(ranks)
    shown = ", ".join(str(rank) for rank in listed[:most])
    return shown + (f" and {len(listed) - most} more" if len(listed) > most else "")
