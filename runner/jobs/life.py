"""A run from its submission to its verdict. Its last state and verdict are kept in the run directory, as schedulers
forget jobs.
"""

from __future__ import annotations

import dataclasses
import math
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import msgspec

from runner.core.errors import RunnerError
from runner.jobs.directory import ENDED, PROVENANCE, VERDICT, Run
from runner.jobs.logs import LogFile, follow, one_rank
from runner.jobs.states import Together, cancel, scheduler_of
from runner.jobs.watch import REAL_CLOCK, Clock, JobProgress, patience, presence, progress, wait
from runner.model.job import JobState
from runner.model.verdict import Verdict

if TYPE_CHECKING:
    from runner.jobs.collect import Evidence
    from runner.jobs.scripts import ScriptEnd

Warn = Callable[[str], None]

# So long after its job's end, by whatever clocks, a record that is not there is missing on every file system.
_SETTLED_S = 600.0
# What judging records may raise that were not written by our programs.
UNFIT = (ArithmeticError, AssertionError, AttributeError, LookupError, TypeError, ValueError, RecursionError)


@dataclass(frozen=True)
class Standing:
    """The state of a run that has no verdict yet; ``tasks``: number of its ranks, 0 where unknown."""

    job_id: str
    progress: JobProgress
    tasks: int


class WaitInterrupted(KeyboardInterrupt):
    """Ctrl-C while waiting for a job.

    Attributes:
        cancelled: the job is being cancelled; else it continues.
    """

    def __init__(self, job_id: str, *, cancelled: bool) -> None:
        super().__init__()
        self.job_id = job_id
        self.cancelled = cancelled


def standing(
    run: Run,
    on_progress: Callable[[JobProgress], None] = lambda _progress: None,
    warn: Warn = lambda _text: None,
    *,
    clock: Clock = REAL_CLOCK,
) -> Verdict | Standing:
    """The run's verdict if its job is over, else its state now.

    A job that ended unnoticed is judged now, as ``finish`` does, which may wait for records to become visible. One that
    the scheduler does not know has ended if its script left an end marker.

    Raises:
        NotAcceptedError, UnknownStateError: as ``scheduler_of``, or the scheduler does not answer.
    """
    if (verdict := _final(run)) is not None:
        return verdict
    if run.ended is None:
        scheduler, job_id = scheduler_of(run)
        state = scheduler.state(job_id, run.path)
        if not run.is_over(state):
            return Standing(job_id, progress(run, state, 0.0), run.tasks)
    return finish(run, on_progress, warn, clock=clock)


def _final(run: Run) -> Verdict | None:
    """Its verdict, unless it is to be judged again."""
    verdict = run.verdict
    return verdict if verdict is not None and verdict.outcome != "unknown" else None


def judge_at_once(run: Run, warn: Warn = lambda _text: None) -> Verdict | None:
    """The verdict on a run whose job is over, kept as ``finish`` does; no record is waited for.

    None if its job is not over, if a record may still become visible, or if the scheduler does not answer.
    """
    try:
        if (kept := _final(run)) is not None:
            return kept
        state = run.ended
        if state is None:
            scheduler, job_id = scheduler_of(run)
            state = scheduler.state(job_id, run.path)
        marker = run.marker
        if state.phase != "ended" and (state.phase != "unknown" or marker is None):
            return None
        is_settled = marker is not None and time.time() - marker.end_s > _SETTLED_S
        plan = None if run.of_script is not None else run.needed_plan()
        if not is_settled and patience(run, presence(run), state, plan) != "none":
            return None
        evidence = _collected(run, state)
    except (RunnerError, OSError):
        return None
    if evidence.damaged and not is_settled:
        return None
    return _judged_and_kept(run, evidence, warn)


def finish(
    run: Run,
    on_progress: Callable[[JobProgress], None],
    warn: Warn,
    *,
    timeout_s: float | None = None,
    cancel_on_interrupt: bool = False,
    together: Together | None = None,
    clock: Clock = REAL_CLOCK,
) -> Verdict:
    """Wait for the run to finish, judge it, and keep its last state and its verdict.

    A verdict that is unknown is not kept: the scheduler is queried again the next time. What it said of the job's end
    is kept, as it forgets jobs.

    Args:
        on_progress: called each time the job's state was queried; never if its end is known already.
        warn: called with what could not be kept.
        timeout_s: seconds to wait at most.
        together: of several that are waited for; None where it is one.

    Raises:
        WaitInterrupted: Ctrl-C while waiting; the job is cancelled if ``cancel_on_interrupt``, else it continues.
        UnknownStateError: the time is over, or the scheduler does not answer.
    """
    if (kept := _final(run)) is not None:
        return kept
    known = run.ended
    evidence = None if known is None else _collected(run, known)
    if evidence is None or _verdict(run, evidence).outcome == "unknown":
        scheduler, job_id = scheduler_of(run)

        def ask() -> JobState:
            return together.state(run, scheduler, job_id) if together else scheduler.state(job_id, run.path)

        def is_whole(state: JobState) -> bool:
            nonlocal evidence
            evidence = _collected(run, state)
            return not evidence.damaged

        try:
            state = wait(run, ask, on_progress, is_whole, timeout_s=timeout_s, clock=clock)
        except KeyboardInterrupt:
            if cancel_on_interrupt:
                cancel(run, scheduler, job_id)
            raise WaitInterrupted(job_id, cancelled=cancel_on_interrupt) from None
        if state.phase == "unknown" and known is not None:
            state = known  # what the scheduler has said counts, though it has forgotten the job
        assert evidence is not None, "it is collected before the waiting ends"
        evidence = dataclasses.replace(evidence, state=state)
    return _judged_and_kept(run, evidence, warn)


def _collected(run: Run, state: JobState) -> Evidence | ScriptEnd:
    """What the job has left. Judging takes what `status` has no use for, and no time to import."""
    if (record := run.submitted) is not None and record.record is not None:
        from runner.jobs.scripts import end_of

        return end_of(run, record, state)
    from runner.jobs.collect import collect

    return collect(run, state)


def _judged_and_kept(run: Run, evidence: Evidence | ScriptEnd, warn: Warn) -> Verdict:
    """The verdict; it, what the scheduler said of the job's end, and which versions ran are kept if they are known. A
    failure to write there must not hide what was learned.
    """
    verdict, state, provenance = _verdict(run, evidence), evidence.state, run.provenance
    if run.is_changed:
        verdict = msgspec.structs.replace(verdict, anew=True)
    known: dict[str, msgspec.Struct] = {}
    if state.phase == "ended" and state != run.ended:
        known[ENDED] = state
    if verdict.outcome != "unknown":
        known[VERDICT] = verdict
        if provenance.runner and verdict.versions and provenance.versions != verdict.versions:
            known[PROVENANCE] = msgspec.structs.replace(provenance, versions=verdict.versions)
    for name, value in known.items():
        try:
            run.keep(name, value)
        except OSError as error:
            warn(f"{name} cannot be kept in {run.path}: {error.strerror}")
    return verdict


def _verdict(run: Run, evidence: Evidence | ScriptEnd) -> Verdict:
    if run.of_script is not None:
        from runner.jobs.scripts import judge_script

        return judge_script(cast("ScriptEnd", evidence))
    evidence = cast("Evidence", evidence)
    from runner.jobs.redaction import without_secrets
    from runner.jobs.verdict import judge

    if evidence.has_older_records:  # by whose rules no verdict is made any more
        return Verdict("not-proven", ("its records are of an older version",))
    return without_secrets(judge(evidence), run)


def judged_anew(run: Run, stored: Verdict) -> Verdict:
    """The verdict that what the run has left gives, for a stored one that anybody may have written: with the reason
    where that one says otherwise.
    """
    claim = stored.outcome if stored.images_per_s is None else f"{stored.images_per_s:.1f} {stored.unit}/s"
    doubt = f"its {VERDICT} says {claim}, which is not what its records give, and does not count"
    try:
        evidence = _collected(run, run.ended or JobState("unknown"))
        is_own = run.path.stat().st_uid == os.geteuid()  # what others judged has no seal of this user
        verdict = msgspec.structs.replace(_verdict(run, evidence), anew=is_own)
    except (RunnerError, OSError, *UNFIT) as error:
        return Verdict("not-proven", (doubt, f"its records cannot be judged: {error}"))
    rates = (stored.images_per_s or 0.0, verdict.images_per_s or 0.0)
    if verdict.outcome == stored.outcome and math.isclose(*rates):
        return verdict
    kind = "remarks" if verdict.outcome in ("measured", "ran") else "reasons"
    return msgspec.structs.replace(verdict, **{kind: (doubt, *getattr(verdict, kind))})


def follow_step(run: Run, on_content: Callable[[LogFile, bytes, bool], None], on_interrupt: Warn) -> bool:
    """Pass on what rank 0 and the script write until the step has ended; Ctrl-C ends the step.

    Returns:
        Whether it was interrupted.
    """
    try:
        follow(run, one_rank(0, script=True), on_content, parts=True)
    except KeyboardInterrupt:
        on_interrupt("interrupted: ending the step")
        scheduler, job_id = scheduler_of(run)
        scheduler.cancel(job_id)
        return True
    return False
