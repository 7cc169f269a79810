"""Wait for a job to finish, and report its progress."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from runner.backends.schedulers import Scheduler
from runner.core import file_system
from runner.core.errors import UnknownStateError
from runner.core.invocation import PROGRAM
from runner.jobs.presence import patience, presence, refresh
from runner.jobs.run import Run
from runner.model.job import JobState

# How long a record may become visible after its job's end: NFS shows a new file after up to 60 s (acdirmax).
_NETWORK_S, _LOCAL_S = 75.0, 2.0
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


@dataclass(frozen=True)
class Clock:
    """How waiting takes its time, and how long it waits for records of a job that has ended.

    Attributes:
        monotonic: seconds, from any zero.
        settle_s: seconds until a record that is not there is believed to be missing; None where that follows from the
            run directory's file system.
    """

    monotonic: Callable[[], float] = field(default=time.monotonic)
    sleep: Callable[[float], None] = field(default=time.sleep)
    settle_s: float | None = None

    def settling_s(self, run: Run) -> float:
        """``settle_s``, or what the run directory's file system demands."""
        if self.settle_s is not None:
            return self.settle_s
        return _LOCAL_S if file_system.is_local(run.path) else _NETWORK_S


REAL_CLOCK = Clock()


def wait(
    run: Run,
    scheduler: Scheduler,
    job_id: str,
    on_progress: Callable[[JobProgress], None],
    is_whole: Callable[[JobState], bool],
    *,
    timeout_s: float | None = None,
    clock: Clock = REAL_CLOCK,
) -> JobState:
    """Wait until the job has ended and every record that its verdict depends on is visible; returns its last state.

    A record that has not become visible in time is missing. A job that the scheduler no longer knows has ended if its
    batch script has written an exit marker; otherwise the state is unknown.

    Args:
        is_whole: called when no record is awaited any more, with the job's last state, and last before this returns:
            whether each can be read, or perhaps not yet.

    Raises:
        UnknownStateError: ``timeout_s`` passed first, or the scheduler did not answer for SILENCE_S.
    """
    began = clock.monotonic()
    plan = run.needed_plan()
    settle_s = clock.settling_s(run)
    answered = began
    ended_since: float | None = None
    pause = _SHORTEST_S
    ended = 0
    state: JobState | None = None
    while True:
        try:
            state = scheduler.state(job_id, run.path)
            answered = clock.monotonic()
        except UnknownStateError:
            if clock.monotonic() - answered > SILENCE_S:
                raise
        now = clock.monotonic()
        has_ended = state is not None and state.phase in ("ended", "unknown")
        is_fresh = has_ended and settle_s > _LOCAL_S and refresh(run)
        there = presence(run)
        current = JobProgress(state, len(there.starts), len(there.exits), now - began)
        on_progress(current)
        if current.ended != ended:  # the end is near: poll often again
            ended, pause = current.ended, _SHORTEST_S
        if state is not None and has_ended:
            ended_since = now if ended_since is None else ended_since
            left_s = {
                "none": 0.0,
                "short": ended_since + (_LOCAL_S if is_fresh else settle_s) - now,
                "full": ended_since + settle_s - now,
            }[patience(run, there, state, plan)]
            if left_s <= 0:
                left_s = ended_since + settle_s - now
                if is_whole(state) or left_s <= 0:
                    return state
            pause = min(pause, left_s)
        else:
            ended_since = None
        if timeout_s is not None and now - began > timeout_s:
            raise UnknownStateError(
                f"the job has not ended within {timeout_s:g} s",
                where=str(run.path),
                fix=f"continue with `{PROGRAM} wait {run.run_id}`, or `cancel` it",
            )
        clock.sleep(pause)
        pause = min(pause * 1.2, _LONGEST_S)


def progress(run: Run, state: JobState | None, elapsed_s: float) -> JobProgress:
    """The state of the run by the records in its directory."""
    there = presence(run)
    return JobProgress(state, len(there.starts), len(there.exits), elapsed_s)
