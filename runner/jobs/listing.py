"""The list of runs. Of each a few small files are read; each scheduler is queried once, for all that have not ended.

Runs are read from the newest on, no more of them than are shown, unless only the scheduler's answer tells which.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace

from runner.core.errors import RunnerError
from runner.jobs.directory import linked
from runner.jobs.life import judge_at_once
from runner.jobs.run import Run, utc
from runner.jobs.states import query
from runner.model.figure import figure_keys
from runner.model.job import JobState, Submitted
from runner.model.output import ListedRun, State
from runner.model.plan import PlanRecord
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


def list_runs(selection: Selection) -> Listing:
    """The runs of this user to which the selection applies. Runs that ended unnoticed are judged, as far as their
    records are there and it takes no more than 2 s in all.
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
    states, errors = query((each.run, each.record) for each in chosen if not (each.record.refused or each.ended))
    until = time.monotonic() + _JUDGING_S
    rows = []
    for known in chosen:
        state = states.get(known.run.path)
        row = _row(_judged(known, state, until), state)
        if not selection.states or selection.states & {row.state, row.outcome}:
            rows.append(row)
    if selection.last is not None and len(rows) > selection.last:
        rows, more = rows[: selection.last], True
    return Listing(tuple(rows), more, refused, errors)


def _selected(selection: Selection) -> Iterator[_Known]:
    """By what the run directories say, the newest first; one that cannot be read is passed over."""
    for run in linked():
        if selection.name and not run.name.startswith(selection.name):
            continue
        if not selection.of_studies and run.group is not None:
            continue
        with suppress(OSError):
            known = _known(run)
            if known is None or known.record.submitted_s < selection.since_s:
                continue
            if selection.site and (known.plan is None or known.plan.site != selection.site):
                continue
            yield known


def _known(run: Run) -> _Known | None:
    """None where it was cut off before the scheduler was called."""
    record, verdict = run.submitted, run.verdict
    if record is None:
        return None
    verdict = None if verdict is None or verdict.outcome == "unknown" else verdict
    return _Known(run, record, run.plan, verdict, verdict is not None or run.ended is not None)


def _judged(known: _Known, state: JobState | None, until: float) -> _Known:
    """With its verdict, if its job is over and there is time to judge it."""
    is_over = known.ended or (state is not None and known.run.is_over(state))
    if known.verdict is not None or not is_over or time.monotonic() > until:
        return known
    verdict = judge_at_once(known.run)
    return known if verdict is None else replace(known, verdict=verdict, ended=True)


def _row(known: _Known, state: JobState | None) -> ListedRun:
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
        **figure_keys(verdict, plan.arms[-1] if plan else None),
    )
