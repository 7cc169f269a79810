"""Wait for a job's end, telling what it does meanwhile."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from runner.errors import UnknownStateError
from runner.jobs.directory import RunDirectory
from runner.model.job import ExitMarker, JobState
from runner.schedulers.slurm import Slurm

# A node's exit marker may be seen before the scheduler has closed the job, and on a shared file system after.
_SETTLE_S = 30.0
_SHORTEST_S, _LONGEST_S = 0.3, 5.0


@dataclass(frozen=True)
class Progress:
    """Where a job stands.

    Attributes:
        state: the scheduler's last answer; None while it has not answered yet.
        started, ended: ranks that have left that record.
        elapsed_s: since the waiting began.
    """

    state: JobState | None
    started: int
    ended: int
    elapsed_s: float


def wait(
    run: RunDirectory,
    scheduler: Slurm,
    job_id: str,
    on_progress: Callable[[Progress], None],
    *,
    timeout_s: float | None = None,
) -> JobState:
    """Wait until the job has ended; returns the scheduler's last word.

    A job that the scheduler no longer knows has ended if the batch script has left its exit marker; if it has not,
    the state is unknown.

    Raises:
        UnknownStateError: ``timeout_s`` passed first, or the scheduler did not answer for ten minutes.
    """
    began = time.monotonic()
    heard = began
    unknown_since: float | None = None
    pause = _SHORTEST_S
    state: JobState | None = None
    while True:
        try:
            state = scheduler.state(job_id)
            heard = time.monotonic()
        except UnknownStateError:
            if time.monotonic() - heard > 600:
                raise
        now = time.monotonic()
        on_progress(progress(run, state, now - began))
        if state is not None and state.phase == "ended":
            return state
        if state is not None and state.phase == "unknown":
            unknown_since = unknown_since or now
            if run.read("exit.json", ExitMarker) is not None or now - unknown_since > _SETTLE_S:
                return state
        else:
            unknown_since = None
        if timeout_s is not None and now - began > timeout_s:
            raise UnknownStateError(
                f"the job has not ended within {timeout_s:g} s",
                where=str(run.path),
                mend=f"wait on with `python -m runner wait {run.run_id}`, or `cancel` it",
            )
        time.sleep(pause)
        pause = min(pause * 1.2, _LONGEST_S)


def progress(run: RunDirectory, state: JobState | None, elapsed_s: float) -> Progress:
    """Where the run stands by the records that lie in it."""
    return Progress(
        state,
        sum(1 for _ in run.ranks.glob("*.start.json")),
        sum(1 for _ in run.ranks.glob("*.exit.json")),
        elapsed_s,
    )
