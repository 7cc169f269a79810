"""Wait for a job to finish, and report its progress."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from runner.errors import UnknownStateError
from runner.jobs.directory import RunDirectory
from runner.model.job import ExitMarker, JobState
from runner.schedulers import Scheduler

# On a shared file system the last records may appear seconds after the scheduler has closed the job.
_SETTLE_S = 30.0
# How long a scheduler may fail to answer before waiting ends.
SILENCE_S = 600.0
_SHORTEST_S, _LONGEST_S = 0.3, 5.0


@dataclass(frozen=True)
class JobProgress:
    """The state of a job.

    Attributes:
        state: the scheduler's last answer; None while it has not answered yet.
        started, ended: number of ranks with that record.
        elapsed_s: seconds since the waiting began.
    """

    state: JobState | None
    started: int
    ended: int
    elapsed_s: float


def wait(
    run: RunDirectory,
    scheduler: Scheduler,
    job_id: str,
    on_progress: Callable[[JobProgress], None],
    *,
    timeout_s: float | None = None,
) -> JobState:
    """Wait until the job has ended; returns its last state.

    A job that the scheduler no longer knows has ended if its batch script has written an exit marker; otherwise the
    state is unknown.

    Raises:
        UnknownStateError: ``timeout_s`` passed first, or the scheduler did not answer for SILENCE_S.
    """
    began = time.monotonic()
    answered = began
    ended_since: float | None = None
    pause = _SHORTEST_S
    ended = 0
    state: JobState | None = None
    while True:
        try:
            state = scheduler.state(job_id, run.path)
            answered = time.monotonic()
        except UnknownStateError:
            if time.monotonic() - answered > SILENCE_S:
                raise
        now = time.monotonic()
        current = progress(run, state, now - began)
        on_progress(current)
        if current.ended != ended:  # the end is near: poll often again
            ended, pause = current.ended, _SHORTEST_S
        if state is not None and state.phase in ("ended", "unknown"):
            ended_since = ended_since or now
            if _at_rest(run, state, current.ended) or now - ended_since > _SETTLE_S:
                return state
        else:
            ended_since = None
        if timeout_s is not None and now - began > timeout_s:
            raise UnknownStateError(
                f"the job has not ended within {timeout_s:g} s",
                where=str(run.path),
                fix=f"continue with `python -m runner wait {run.run_id}`, or `cancel` it",
            )
        time.sleep(pause)
        pause = min(pause * 1.2, _LONGEST_S)


def _at_rest(run: RunDirectory, state: JobState, ended: int) -> bool:
    """Whether all that the job writes is visible: a successful job has written its marker and every record."""
    if state.phase == "unknown" or state.name == "COMPLETED":
        marked = run.read("exit.json", ExitMarker) is not None
        return marked and (state.phase == "unknown" or ended >= run.plan().tasks)
    return True


def progress(run: RunDirectory, state: JobState | None, elapsed_s: float) -> JobProgress:
    """The state of the run by the records in its directory."""
    return JobProgress(
        state,
        sum(1 for _ in run.ranks.glob("*.start.json")),
        sum(1 for _ in run.ranks.glob("*.exit.json")),
        elapsed_s,
    )
