"""The attempts at a launch: what became of each run, and whether another one may be started.

What is on disk is the record. A run directory whose submission was cut off is either found in the queue or removed: a
job that the scheduler accepts afterwards finds no run directory, and ends without a measurement.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from runner.core import files
from runner.jobs import creation
from runner.jobs.campaign import Campaign, kept_verdict
from runner.jobs.directory import SCRIPT, Run
from runner.jobs.life import judge_at_once
from runner.jobs.states import Answers, connected, never_began, query, scheduler_of
from runner.model.backends import SCHEDULERS
from runner.model.job import JobState, Submitted
from runner.model.study import Launch, LaunchState
from runner.model.verdict import Verdict

# How long after its call to the scheduler a submission that was killed may still go on without its caller, seconds:
# sbatch and qsub wait for an answer of the controller; elsewhere a process was started, or it was not.
_CLIENT_S, _PROCESS_S = 20.0, 5.0
_POLL_S = 0.3


@dataclass(frozen=True)
class Attempt:
    """A run of a launch.

    Attributes:
        state: as LaunchState, never ``missing``. why: it is not proven; empty else.
        gone: its job is over for certain, so that another one may be started.
        awaited: its job is over, and records that may still become visible decide what it is worth.
        is_gap: it was launched, and is no run any more. place: as of ``Log.place``.
    """

    run: Run
    state: LaunchState
    why: str = ""
    verdict: Verdict | None = None
    gone: bool = True
    awaited: bool = False
    is_gap: bool = False
    place: int = 0


def settle(campaign: Campaign, launches: Sequence[Launch], sleep: Callable[[float], None] = time.sleep) -> None:
    """Find the jobs of submissions that were cut off, and remove the run directories that have none.

    Call it while the campaign is held: nothing else may be submitting.

    Raises:
        UnknownStateError: the scheduler does not answer.
    """
    keys = [launch.key for launch in launches]
    for run in (run for key in keys for run in campaign.runs(key) if kept_verdict(run) is None):
        record = run.submitted
        if record is None or record.refused or not (run.path / SCRIPT).is_file():
            # What has begun was submitted, whatever became of these files since.
            if not run.has_marker and not files.names_in(run.ranks):
                creation.discard(run)
        elif not record.job_id:
            _settle(run, record, sleep)
    campaign.note_known(keys)


def _settle(run: Run, record: Submitted, sleep: Callable[[float], None]) -> None:
    limit_s = _CLIENT_S if SCHEDULERS[record.scheduler].nodes == "allocated" else _PROCESS_S
    left_s = min(record.submitted_s + limit_s - time.time(), limit_s)  # the clock may have been set back
    scheduler = connected(run, record)
    while not (scheduler.find(run.path) or run.has_marker):
        if left_s <= 0:
            creation.discard(run)
            return
        sleep(_POLL_S)
        left_s -= _POLL_S
    scheduler_of(run)  # keeps the id


def states(runs: Iterable[Run], answers: Answers | None = None) -> Mapping[Path, JobState]:
    """The states of the jobs of runs that have no verdict; those whose scheduler gives no answer are left out.
    ``answers``: as of ``query``.
    """
    records = [(run, run.read("job.json", Submitted)) for run in runs]
    asked = ((run, record) for run, record in records if record is not None and not record.refused)
    known, _errors = query(asked, answers)
    return known


def without_verdict(runs: Iterable[Run]) -> tuple[Run, ...]:
    """Those of which only the scheduler knows how they stand."""
    return tuple(run for run in runs if kept_verdict(run) is None)


def attempt_of(run: Run, state: JobState | None) -> Attempt | None:
    """What became of a run, with its job's state; None where the scheduler did not take it: it is no attempt."""
    verdict = kept_verdict(run)
    record = run.submitted
    if record is not None and never_began(run, record, state):
        return None
    if verdict is None:
        if record is None or record.refused:
            return None
        if (unfinished := _unfinished(run, record, state)) is not None:
            return unfinished
        verdict = kept_verdict(run)
    if verdict is not None and verdict.outcome == "measured" and verdict.images_per_s:
        return Attempt(run, "proven", "", verdict)
    why = "the scheduler knows its job no more, and it left no result"
    if verdict is not None:
        why = verdict.why_unmeasured or "the run is measured, and has no rate"
    return Attempt(run, "not-proven", why, verdict)


def _unfinished(run: Run, record: Submitted, state: JobState | None) -> Attempt | None:
    """The attempt while its job may not be over; None once it is, and was judged as far as that is possible."""
    if state is None:
        return Attempt(run, "pending", "the scheduler does not answer", gone=False)
    if not record.job_id and state.phase == "unknown":
        return Attempt(run, "pending", "it is being submitted, or that was cut off", gone=False)
    has_ended = state.phase == "ended" or run.has_marker
    if not has_ended and state.phase in ("pending", "running"):
        return Attempt(run, "running" if state.phase == "running" else "pending", gone=False)
    is_process = SCHEDULERS[record.scheduler].nodes != "allocated"
    if not has_ended and is_process and run.provenance.host not in ("", platform.node()):
        return Attempt(run, "running", "its job runs, or ran, on another machine", gone=False)
    if judge_at_once(run) is None and has_ended:
        return Attempt(run, "running", "its records are awaited", gone=False, awaited=True)
    return None


def decisive(attempts: Sequence[Attempt]) -> Attempt | None:
    """The attempt that a launch stands by: the first that is proven, else the last; None without any."""
    proven = [each for each in attempts if each.state == "proven"]
    return proven[0] if proven else attempts[-1] if attempts else None


def to_start(launches: Sequence[Launch], attempts: Mapping[str, Sequence[Attempt]], limit: int) -> tuple[Launch, ...]:
    """The launches of which another run may be started: missing or not proven, no job of it left, attempts left. Pure.

    Args:
        attempts: by the launch's key. limit: how many runs a launch may have.
    """
    return tuple(
        launch
        for launch in launches
        if len(made := attempts.get(launch.key, ())) < limit
        and all(each.gone and each.state != "proven" for each in made)
    )
