"""The list of runs. Of each a few small files are read; each scheduler is queried once, for all that have not ended.

Runs are read from the newest on, no more of them than are shown, unless only the scheduler's answer tells which.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from runner.core.errors import RunnerError
from runner.core.hide import hidden_command
from runner.jobs.directory import CODE_DIFF, Run, Studies, linked, utc
from runner.jobs.life import Standing, judge_at_once
from runner.jobs.states import Answers, query
from runner.jobs.watch import presence
from runner.model.figure import figure_keys
from runner.model.job import JobState, NodeShare, Phase, Submitted
from runner.model.output import Allotment, ListedRun, RankGpu, RunFacts, ShownRun, State
from runner.model.plan import COPY, PlanRecord, is_copied
from runner.model.records import StartRecord
from runner.model.verdict import Verdict

_JUDGING_S = 2.0  # at most, for one list


@dataclass(frozen=True)
class Selection:
    """Which runs to list: those to which all of these apply.

    Attributes:
        name, site: empty for any. states: states and outcomes; empty for any but refused submissions.
        since_s: submitted at this Unix time or later. last: how many at most, the newest; None for all.
        of_studies: those that are launches of studies, too.
    """

    name: str = ""
    site: str = ""
    states: frozenset[str] = frozenset()
    since_s: float = 0.0
    last: int | None = None
    of_studies: bool = True


@dataclass(frozen=True)
class Listing:
    """Runs, the newest first.

    Attributes:
        more: whether there are older ones to which the selection applies. refused: submissions left out as no runs.
        errors: of schedulers that gave no answer; the states of their runs are unknown.
    """

    runs: tuple[ListedRun, ...]
    more: bool = False
    refused: int = 0
    errors: tuple[RunnerError, ...] = ()


@dataclass(frozen=True)
class _Known:
    """A run by what was learned of it: its submission, and its end and verdict if these are known."""

    run: Run
    record: Submitted
    plan: PlanRecord | None
    verdict: Verdict | None
    ended: bool


def list_runs(selection: Selection, answers: Answers | None = None) -> Listing:
    """The runs of this user to which the selection applies. Runs that ended unnoticed are judged, as far as their
    records are there and it takes no more than 2 s in all. ``answers``: as of ``query``.
    """
    refused = 0
    chosen: list[_Known] = []
    for known in _selected(selection):
        if known.record.refused and not selection.states:
            refused += 1
            continue
        chosen.append(known)
        if not selection.states and selection.last is not None and len(chosen) > selection.last:
            break
    more = not selection.states and selection.last is not None and len(chosen) > selection.last
    if more:
        chosen.pop()
    listed, errors = _rows(chosen, answers)
    rows = [row for row in listed if not selection.states or selection.states & {row.state, row.outcome}]
    if selection.last is not None and len(rows) > selection.last:
        rows, more = rows[: selection.last], True
    return Listing(tuple(rows), more, refused, errors)


def list_these(runs: Iterable[Run]) -> tuple[tuple[ListedRun, ...], tuple[RunnerError, ...]]:
    """The same of these runs, without those that cannot be read, and the errors of schedulers."""
    rows, errors = _rows([known for run in runs if (known := _known(run)) is not None])
    return tuple(rows), errors


def _rows(chosen: Sequence[_Known], answers: Answers | None = None) -> tuple[list[ListedRun], tuple[RunnerError, ...]]:
    unended = ((each.run, each.record) for each in chosen if not (each.record.refused or each.ended))
    states, errors = query(unended, answers)
    until = time.monotonic() + _JUDGING_S
    rows: list[ListedRun] = []
    studies: Studies = {}
    for each in chosen:
        known = each
        state = states.get(known.run.path)
        is_over = known.ended or (state is not None and known.run.is_over(state))
        if known.verdict is None and is_over and time.monotonic() <= until:
            verdict = judge_at_once(known.run)
            known = known if verdict is None else replace(known, verdict=verdict, ended=True)
        rows.append(_row(known, state, studies))
    return rows, errors


def _selected(selection: Selection) -> Iterator[_Known]:
    """By what the run directories say, the newest first; one that cannot be read is passed over."""
    for run in linked():
        if selection.name and not run.name.startswith(selection.name):
            continue
        if not selection.of_studies and run.group is not None:
            continue
        known = _known(run)
        if known is None or known.record.submitted_s < selection.since_s:
            continue
        if not selection.site or (known.plan is not None and known.plan.site == selection.site):
            yield known


def _known(run: Run) -> _Known | None:
    """None where it cannot be read, was cut off before the scheduler was called, or is an attempt that isn't queued."""
    with suppress(OSError):
        if (record := run.submitted) is not None and not run.is_needless:
            verdict = run.listed_verdict
            verdict = None if verdict is None or verdict.outcome == "unknown" else verdict
            return _Known(run, record, run.plan, verdict, verdict is not None or run.ended is not None)
    return None


def _row(known: _Known, state: JobState | None, studies: Studies) -> ListedRun:
    run, record, plan, verdict = known.run, known.record, known.plan, known.verdict
    shown: State = "unknown"
    if record.refused:
        shown = "not-submitted"
    elif known.ended:
        shown = "ended"
    elif state is not None:
        shown = state.phase
    return ListedRun(
        run=run.run_id,
        directory=str(run.path),
        name=run.name,
        job=record.job_id,
        state=shown,
        reason=state.reason if state is not None and shown == "pending" else "",
        gpus=plan.gpus if plan else 0,
        site=plan.site if plan else "",
        submitted=utc(record.submitted_s),
        outcome=verdict.outcome if verdict else None,
        values=run.swept,
        **figure_keys(verdict, run.figure_by(verdict, plan, studies)),
    )


Now = Verdict | Standing | None

# Where Slurm reports to a task which GPUs of its node the job has, the most exact first.
_GPUS = ("SLURM_STEP_GPUS", "SLURM_JOB_GPUS")


def run_facts(run: Run, now: Now, studies: Studies | None = None) -> RunFacts:
    """All facts about a run, from its directory and ``now``: its verdict or state; None where it was just submitted.

    No scheduler is queried. What cannot be read is empty, 0 or None. ``studies``: as ``seen`` of ``Run.of_study``.
    """
    return RunFacts(**_facts(run, run.plan, now, studies))


def shown_run(run: Run, now: Now, studies: Studies | None = None) -> ShownRun:
    """The same, and its command line, the user's code, the image, the nodes and GPUs it had. Raises UsageError: its
    plan cannot be read.
    """
    record, command, code, ended = run.of_script, run.command, run.code, run.ended
    plan = run.needed_plan() if record is None else None
    return ShownRun(
        **_facts(run, plan, now, studies),
        command_line=hidden_command(command.arguments),
        typed_in=command.directory,
        rerun_of=command.rerun_of,
        code=code,
        code_diff=str(run.path / CODE_DIFF) if code and code.diff_kept else "",
        code_copy=str(run.path / COPY) if plan and is_copied(plan) else "",
        image_digest=plan.image.digest if plan else "",
        image_file=plan.image.path if plan else "",
        image_sha256=plan.image.sha256 if plan else "",
        node_list=_shares(run.records.starts, plan) if plan else (),
        allocated=ended.allocated if ended else "",
        forced=plan.forced if plan else (),
        record=record,
    )


def _facts(run: Run, plan: PlanRecord | None, now: Now, studies: Studies | None = None) -> dict[str, Any]:
    submitted, provenance, start, marker = run.submitted, run.provenance, run.records.start(0), run.marker
    record = submitted.record if submitted else None
    started = ended = 0
    if isinstance(now, Standing):
        started, ended = now.progress.started, now.progress.ended
    elif now is not None:
        with suppress(OSError):
            there = presence(run)
            started, ended = len(there.starts), len(there.exits)
    verdict = now if isinstance(now, Verdict) else None
    return {
        "run": run.run_id,
        "directory": str(run.path),
        "name": plan.job_name if plan else "",
        "job": now.job_id if isinstance(now, Standing) else submitted.job_id if submitted else "",
        "state": _state(now),
        "scheduler": now.progress.state if isinstance(now, Standing) else run.ended,
        "site": plan.site if plan else "",
        "recipe": plan.recipe if plan else "",
        "runtime": plan.runtime if plan else "",
        "image": plan.image.pinned if plan else "",
        "gpus": plan.gpus if plan else 0,
        "nodes": plan.nodes if plan else 0,
        "ranks": plan.tasks if plan else 0,
        "ranks_started": started,
        "ranks_ended": ended,
        "submitted": utc(submitted.submitted_s) if submitted else None,
        "started": utc(start.time_s if start else record.started_s if record else None),
        "ended": utc(marker.end_s if marker else record.ended_s if record else None),
        "findings": provenance.findings,
        "unconfirmed": provenance.unconfirmed,
        "verdict": verdict,
        "exit_code": verdict.exit_code if verdict else None,
        "figure": run.figure_by(verdict, plan, studies),
        "allotment": plan and allotment(run, plan, now.progress.state if isinstance(now, Standing) else run.ended),
        "rank_gpus": _running_gpus(run, plan, now),
    }


def allotment(run: Run, plan: PlanRecord, state: JobState | None) -> Allotment:
    """Where the job waits or runs: what the scheduler said of it, else what was requested.

    Args:
        state: the scheduler's last answer; None where it was not asked.
    """
    known, record, start = state or JobState("pending"), run.submitted, run.records.start(0)
    estimates = (known.start_s, record.estimated_s if record else None) if known.phase == "pending" else ()
    now_s, limit_s = time.time(), known.limit_s or plan.walltime_s
    elapsed_s = known.elapsed_s if known.phase == "running" else None
    if known.phase == "running" and elapsed_s is None and start is not None:
        elapsed_s = max(0, int(now_s - (start.time_s or now_s)))
    return Allotment(
        partition=known.partition,
        queue=plan.queue or "",
        account=known.account or plan.account or "",
        limit_s=limit_s,
        limit_is_default=plan.limit_is_default and limit_s == plan.walltime_s,
        estimated_start=utc(next((each for each in estimates if each is not None and each > now_s), None)),
        elapsed_s=elapsed_s,
        left_s=None if elapsed_s is None else max(0, limit_s - elapsed_s),
    )


def _running_gpus(run: Run, plan: PlanRecord | None, now: Now) -> tuple[RankGpu, ...]:
    if plan is None or not (isinstance(now, Standing) and now.progress.started and _state(now) == "running"):
        return ()
    from runner.jobs.gpu_load import rank_gpus  # of no use once it has ended

    return rank_gpus(run, plan)


def _state(now: Now) -> Phase:
    if isinstance(now, Verdict):
        return "unknown" if now.outcome == "unknown" else "ended"
    if now is None:
        return "pending"
    return now.progress.state.phase if now.progress.state else "unknown"


def _shares(starts: Mapping[int, StartRecord], plan: PlanRecord) -> tuple[NodeShare, ...]:
    """The nodes in the order of their first ranks, with the GPUs that the ranks had there."""
    from runner.jobs.collect import nodes_of  # of no use to show a state

    places = nodes_of(starts, plan.tasks_per_node)
    of_nodes: dict[str, list[StartRecord]] = {}
    for rank, start in starts.items():
        of_nodes.setdefault(places[rank], []).append(start)
    shares = []
    for own in of_nodes.values():
        # As the scheduler reported them to its tasks; else those that the ranks took.
        listed = next((own[0].environment[name] for name in _GPUS if own[0].environment.get(name)), "").split(",")
        gpus = {int(part) for part in listed} if all(part.isdecimal() for part in listed) else set()
        gpus = gpus or {start.device_index for start in own if start.device_index is not None}
        ranks = tuple(start.rank for start in own)
        shares.append(NodeShare(own[0].node_name or own[0].host, ranks, tuple(sorted(gpus))))
    return tuple(shares)
