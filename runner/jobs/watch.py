"""Which records of a run are there, and whether one that is missing could still change the verdict.

A network file system shows a new file late (NFS: up to ``acdirmax``, 60 s), so its absence is believed only after a
while. What a directory's listing shows proves that what was written into it before is there, too.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from runner.backends.schedulers import quiet_s
from runner.core import files
from runner.core.errors import UnknownStateError
from runner.core.invocation import PROGRAM
from runner.jobs.directory import CANCELLED, EXIT, RESULT, Run
from runner.model.job import JobState
from runner.model.plan import RESULTS, Plan

# How long a record that is not there is waited for: not at all; until a listing that was made anew shows that it is
# not there; as long as a file system may hide it.
Patience = Literal["none", "short", "full"]

_NCCL_LOGS = f"{RESULTS}/nccl/"


@dataclass(frozen=True)
class Presence:
    """What is there, by one listing of each directory.

    Attributes:
        marker: the batch script's exit marker. cancelled: the record of who cancels the job.
        result: the program's result.
        starts, exits, reports: ranks with that record.
    """

    marker: bool
    result: bool
    starts: frozenset[int]
    exits: frozenset[int]
    reports: frozenset[int]
    cancelled: bool = False


def presence(run: Run) -> Presence:
    """What is there now: two listings, whatever the number of ranks. Raises OSError: the run directory cannot be
    listed.
    """
    # The records come before the marker: once that is seen, they are.
    above = run.names_in("")
    ranks = run.records.listing()
    return Presence(
        marker=EXIT in above,
        result=RESULT in above,
        starts=frozenset(ranks.get("start", ())),
        exits=frozenset(ranks.get("exit", ())),
        reports=frozenset(ranks.get("report", ())),
        cancelled=CANCELLED in above,
    )


def patience(run: Run, there: Presence, state: JobState, plan: Plan | None) -> Patience:
    """How long to wait for what is not there and could change the verdict on a job that has ended so.

    A report and a node's record are written before their rank's exit record, into the same directory, and the result
    before the marker: where the later one is listed, the absence of the earlier one is no delay.
    """
    from runner.diagnosis.catalogue import find  # of no use while a job runs

    if plan is None or run.is_needless:
        return "none"
    explained = find("scheduler state", state.name, state.reason)
    if explained is not None and explained.outcome not in ("failed", "cancelled"):
        return "none"  # whatever the ranks left
    if explained is not None and state.phase == "ended" and not (state.nodes or there.starts or there.marker):
        return "none"  # it never had a node
    if explained is None and not there.marker:
        return "full"
    ranks = range(plan.tasks)
    if not (there.starts.issuperset(ranks) and there.exits.issuperset(ranks)):
        return "short" if _never_began(run, there, plan) else "full"
    return "short" if _lacks_nccl_logs(run, there, plan) else "none"


def refresh(run: Run) -> bool:
    """Make this machine list the run's records anew: a change of its own makes the client of a network file system
    drop what it keeps of a directory (NFS by the change attribute, sshfs always). False where nothing can be written.
    """
    return all(files.touch_directory(folder) for folder in (run.path, run.ranks, run.path / "nccl"))


def _never_began(run: Run, there: Presence, plan: Plan) -> bool:
    """Whether the job's step ended without any rank, and the container runtime says why: none can have left more."""
    if there.starts or there.exits or not there.marker:
        return False
    from runner.jobs.collect import container_faults  # of no use while a job runs

    return any(container_faults(run, plan, there.starts))


def _lacks_nccl_logs(run: Run, there: Presence, plan: Plan) -> bool:
    """Whether ranks of which a figure is claimed should have left logs of NCCL, and have not all."""
    claims = plan.result == "throughput" or (plan.result == "if-left" and there.result)
    if not claims or plan.device != "cuda" or plan.tasks == 1:
        return False
    if not dict(plan.env).get("NCCL_DEBUG_FILE", "").startswith(_NCCL_LOGS):
        return False
    logs = (name for name in run.names_in("nccl") if name.endswith(".log"))
    return sum(1 for _ in logs) < plan.tasks


# How long a record may become visible after its job's end: NFS shows a new file after up to 60 s (acdirmax).
_NETWORK_S, _LOCAL_S = 75.0, 2.0
SILENCE_S = 600.0  # how long a scheduler may fail to answer before waiting ends
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
        return _LOCAL_S if files.is_local(run.path) else _NETWORK_S


REAL_CLOCK = Clock()


class Pace:
    """When a job's scheduler is asked: when the run directory has changed, and often near the end, as it will soon tell
    of that; else as seldom as it is to be left alone.
    """

    def __init__(self, run: Run, clock: Clock = REAL_CLOCK) -> None:
        record = run.submitted
        self._every_s = quiet_s(record.scheduler) if record is not None else 0.0
        self._clock = clock
        self._asked_s, self._near_s = -math.inf, _SHORTEST_S
        self._seen: Presence | None = None

    def is_due(self, there: Presence) -> bool:
        """Whether it is asked now, which is kept in mind."""
        is_near = there.marker or there.cancelled
        self._near_s = min(self._near_s * 1.2, self._every_s) if is_near else _SHORTEST_S
        now, pause_s = self._clock.monotonic(), self._near_s if is_near else self._every_s
        if there == self._seen and now - self._asked_s < pause_s:
            return False
        self._asked_s, self._seen = now, there
        return True


def wait(
    run: Run,
    ask: Callable[[], JobState],
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
        ask: the scheduler for the job's state.
        is_whole: called when no record is awaited any more, with the job's last state, and last before this returns:
            whether each can be read, or perhaps not yet.

    Raises:
        UnknownStateError: ``timeout_s`` passed first, or the scheduler did not answer for SILENCE_S.
    """
    began = clock.monotonic()
    plan = None if run.of_script is not None else run.needed_plan()
    settle_s = clock.settling_s(run)
    answered = began
    ended_since: float | None = None
    pause = _SHORTEST_S
    ended = 0
    state: JobState | None = None
    pace = Pace(run, clock)
    while True:
        there = presence(run)
        if pace.is_due(there):
            try:
                state = ask()
                answered = clock.monotonic()
            except UnknownStateError:
                if clock.monotonic() - answered > SILENCE_S:
                    raise
        now = clock.monotonic()
        has_ended = state is not None and state.phase in ("ended", "unknown")
        is_fresh = has_ended and settle_s > _LOCAL_S and refresh(run)
        there = presence(run) if has_ended else there
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
