"""One job of the largest size, in which the launches run one after another: on the same nodes, and none beside another.

Where no scheduler gives out nodes, that job is one process of this machine, which starts the launches in turn.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from runner.core.errors import UnknownStateError
from runner.core.invocation import PROGRAM
from runner.core.text import counted, gpus_text
from runner.jobs import directory
from runner.jobs.cancel import cancel_run
from runner.jobs.directory import RunDirectory
from runner.jobs.in_allocation import STOPPED, has_begun, never_began
from runner.jobs.life import WaitInterrupted
from runner.jobs.states import connected, scheduler_of
from runner.jobs.watch import SILENCE_S, JobProgress, progress
from runner.model.job import JobState
from runner.model.study import Launch
from runner.study import allocation, cost
from runner.study.allocation import PlannedLaunch
from runner.study.directory import StudyDirectory
from runner.study.ways import Work, separate

_POLL_S = 1.0
_WHY = {
    "TIME": ": the next launch did not fit into its time limit",
    "CANCELLED": ": it was cancelled",
    "BUSY": ": a step of an earlier launch did not end",
    "DISK": ": a run directory could not be written",
}


def carry_out(work: Work, wanted: Sequence[Launch]) -> None:
    """See ``Way``. While an allocation of the study is in the queue or runs, no other is made."""
    _discard_unbegun(work.study)
    if not separate.open_runs_of(work.study) and wanted and not work.study.is_stopped:
        _start(work, wanted)
    if work.waits:
        _wait(work)


def states(runs: Sequence[RunDirectory]) -> Mapping[Path, JobState]:
    """See ``Way``: one query for all launches of an allocation."""
    return separate.states(runs)


def cancel(study: StudyDirectory) -> tuple[str, ...]:
    """See ``Way``: the allocation, and with it all of its launches."""
    cancelled = []
    for own in allocation.allocations(study.path):
        record = own.submitted
        if record is None or not (record.job_id or connected(own, record).find(own.path)):
            continue  # it never came to the scheduler
        job_id, had_ended = cancel_run(own)
        if not had_ended:
            cancelled.append(job_id)
    return tuple(cancelled)


def _start(work: Work, wanted: Sequence[Launch]) -> None:
    largest = work.prepare(_largest(work.study.study.launches))
    planned = []
    for launch in wanted:
        prepared = work.prepare(launch)
        expected_s = cost.launch_s(prepared.plan, launch)
        runs = work.study.launches(launch.key)
        planned.append(PlannedLaunch(launch, prepared, runs, expected_s, work.command(launch)))
    job_id = allocation.start(work.study.path, work.study.name, planned, largest, keep_diff=work.keep_diff)
    if work.study.is_stopped:  # since it was looked at: `cancel` may not have seen this job
        cancel(work.study)
    work.listener.tell(
        f"job {job_id}: {counted(len(planned), 'launch')}, one after another, on {gpus_text(largest.plan.tasks)}"
    )


def _largest(launches: Sequence[Launch]) -> Launch:
    """Of the study, not of what is left of it: each allocation has the same shape."""
    return max(launches, key=lambda launch: launch.gpus)


def _discard_unbegun(study: StudyDirectory) -> None:
    """Remove the run directories of launches whose allocation is over and never began them: they hold nothing."""
    runs = [run for launch in study.study.launches for run in study.runs(launch.key)]
    unbegun = [run for run in runs if not has_begun(run)]
    known = states(unbegun)
    for run in unbegun:
        record = run.submitted
        if record is not None and never_began(run, record, known.get(run.path)):
            directory.discard(run)


def _wait(work: Work) -> None:
    """Until each launch has ended and was judged, or the allocation has."""
    for launch, run in separate.open_runs_of(work.study):
        tasks = run.tasks

        def on_progress(now: JobProgress, tasks: int = tasks) -> None:
            work.listener.progress(now, tasks)

        if not _begins(run, on_progress):
            work.listener.warn(
                f"{launch.key} and what follows it have not begun, and the allocation is over{_why(work.study)}; "
                f"for what is missing: `{PROGRAM} scale --resume {work.study.path.name}`"
            )
            return
        separate.finished(work, launch, run)


def _begins(run: RunDirectory, on_progress: Callable[[JobProgress], None]) -> bool:
    """Wait until the launch has begun; False where its allocation is over before.

    Raises:
        WaitInterrupted: Ctrl-C.
        UnknownStateError: the scheduler did not answer for SILENCE_S.
    """
    scheduler, job_id = scheduler_of(run)
    began = answered = time.monotonic()
    try:
        while not has_begun(run):
            try:
                state = scheduler.state(job_id, run.path)
                answered = time.monotonic()
            except UnknownStateError:
                if time.monotonic() - answered > SILENCE_S:
                    raise
            else:
                on_progress(progress(run, state, time.monotonic() - began))
                if state.phase in ("ended", "unknown"):
                    return has_begun(run)
            time.sleep(_POLL_S)
    except KeyboardInterrupt:
        raise WaitInterrupted(job_id, cancelled=False) from None
    return True


def _why(study: StudyDirectory) -> str:
    """Why the last allocation did not run all of its launches, where its script could tell."""
    own = allocation.allocations(study.path)[-1]
    try:
        return _WHY.get((own.path / STOPPED).read_text().strip(), "")
    except OSError:
        return ""
