"""The list of runs. Of each a few small files are read; each scheduler is queried once, for all that have not ended.

Runs are read from the newest on, no more of them than are shown, unless only the scheduler's answer tells which.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

import msgspec

from runner.core.errors import RunnerError
from runner.jobs.directory import RunDirectory, linked
from runner.jobs.life import judge_at_once
from runner.jobs.states import query
from runner.jobs.times import utc
from runner.model.job import JobState, Submitted
from runner.model.listed_run import ListedRun, State
from runner.model.verdict import Outcome

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


class _Plan(msgspec.Struct, frozen=True):
    """What a list needs of a plan."""

    site: str = ""
    tasks_per_node: tuple[int, ...] = (0,)
    gpus_per_node: int = 0

    @property
    def gpus(self) -> int:
        """As requested; on a site without GPUs, a rank stands for a GPU."""
        ranks = max(self.tasks_per_node, default=0)
        return sum(self.tasks_per_node) * (self.gpus_per_node // ranks) if ranks else 0


class _Verdict(msgspec.Struct, frozen=True):
    """What a list needs of a verdict."""

    outcome: Outcome
    images_per_s: float | None = None
    unit: str = "images"
    demonstration: str = ""


@dataclass(frozen=True)
class _Read:
    run: RunDirectory
    record: Submitted
    plan: _Plan
    verdict: _Verdict | None
    ended: bool

    @property
    def is_open(self) -> bool:
        """Whether only the scheduler knows its state."""
        return not self.record.refused and not self.ended


def list_runs(selection: Selection) -> Listing:
    """The runs of this user to which the selection applies. Runs that ended unnoticed are judged, as far as their
    records are there and it takes no more than 2 s in all.
    """
    refused = 0
    chosen: list[_Read] = []
    for read in _selected(selection):
        if read.record.refused and not selection.states:
            refused += 1
            continue
        chosen.append(read)
        if not selection.states and selection.last is not None and len(chosen) > selection.last:
            break
    more = not selection.states and selection.last is not None and len(chosen) > selection.last
    if more:
        chosen.pop()
    states, errors = query((read.run, read.record) for read in chosen if read.is_open)
    until = time.monotonic() + _JUDGING_S
    rows = []
    for read in chosen:
        row = _row(_judged(read, states.get(read.run.path), until), states.get(read.run.path))
        if not selection.states or selection.states & {row.state, row.outcome}:
            rows.append(row)
    if selection.last is not None and len(rows) > selection.last:
        rows, more = rows[: selection.last], True
    return Listing(tuple(rows), more, refused, errors)


def _selected(selection: Selection) -> Iterator[_Read]:
    """By what the run directories say, the newest first; one that cannot be read is passed over."""
    for run in linked():
        if selection.name and not run.name.startswith(selection.name):
            continue
        if not selection.of_studies and run.study is not None:
            continue
        with suppress(OSError):
            read = _read(run)
            if read is None or read.record.submitted_s < selection.since_s:
                continue
            if selection.site and read.plan.site != selection.site:
                continue
            yield read


def _read(run: RunDirectory) -> _Read | None:
    """None where it was cut off before the scheduler was called."""
    record = run.read("job.json", Submitted)
    if record is None:
        return None
    verdict = run.read("verdict.json", _Verdict)
    if verdict is not None and verdict.outcome == "unknown":
        verdict = None
    ended = verdict is not None or run.read("ended.json", JobState) is not None
    return _Read(run, record, run.read("plan.json", _Plan) or _Plan(), verdict, ended)


def _judged(read: _Read, state: JobState | None, until: float) -> _Read:
    """With its verdict, if its job is over and there is time to judge it."""
    marker = read.run.path / "exit.json"
    is_over = read.ended or (
        state is not None and (state.phase == "ended" or (state.phase == "unknown" and marker.exists()))
    )
    if read.verdict is not None or not is_over or time.monotonic() > until:
        return read
    verdict = judge_at_once(read.run)
    if verdict is None:
        return read
    kept = _Verdict(verdict.outcome, verdict.images_per_s, verdict.unit, verdict.demonstration)
    return _Read(read.run, read.record, read.plan, kept, ended=True)


def _row(read: _Read, state: JobState | None) -> ListedRun:
    record, verdict = read.record, read.verdict
    shown: State = "unknown"
    if record.refused:
        shown = "not-submitted"
    elif read.ended:
        shown = "ended"
    elif state is not None:
        shown = state.phase
    return ListedRun(
        run=read.run.run_id,
        directory=str(read.run.path),
        name=read.run.name,
        job=record.job_id,
        state=shown,
        reason=state.reason if state is not None and shown == "pending" else "",
        gpus=read.plan.gpus,
        site=read.plan.site,
        submitted=utc(record.submitted_s),
        outcome=verdict.outcome if verdict else None,
        images_per_s=verdict.images_per_s if verdict else None,
        unit=verdict.unit if verdict else "images",
        demonstration=verdict.demonstration if verdict else "",
    )
