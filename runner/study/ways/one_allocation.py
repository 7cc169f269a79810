"""One job of the largest size, in which the launches run one after another: on the same nodes, and none beside another.

Where no scheduler gives out nodes, that job is one process of this machine, which starts the launches in turn.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from runner.core.errors import UnknownStateError
from runner.core.text import counted, gpus_text
from runner.jobs import directory
from runner.jobs.cancel import cancel_run
from runner.jobs.directory import RunDirectory
from runner.jobs.in_allocation import STOPPED, has_begun, never_began
from runner.jobs.life import WaitInterrupted
from runner.jobs.states import connected, scheduler_of
from runner.jobs.watch import SILENCE_S, JobProgress, progress
from runner.model.study import Launch
from runner.study import allocation, cost
from runner.study.allocation import PlannedLaunch
from runner.study.attempts import states
from runner.study.campaign import Campaign
from runner.study.directory import name_of
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
    _discard_unbegun(work)
    if not separate.open_runs_of(work.campaign, work.launches) and wanted and not work.campaign.is_stopped:
        _start(work, wanted)
    if work.waits:
        _wait(work)


def cancel(study: Campaign) -> tuple[str, ...]:
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
    largest = work.prepare(_largest(work.launches))
    planned = []
    for launch in wanted:
        prepared = work.prepare(launch)
        expected_s = cost.launch_s(prepared.plan, launch)
        planned.append(PlannedLaunch(launch, prepared, work.campaign.launches(launch.key), expected_s))
    path = work.campaign.path
    job_id, runs = allocation.start(path, name_of(path.name), planned, largest)
    for launch, run in zip(wanted, runs, strict=True):
        work.campaign.note("launched", launch.key, [run])
    if work.campaign.is_stopped:  # since it was looked at: `cancel` may not have seen this job
        cancel(work.campaign)
    work.listener.tell(
        f"job {job_id}: {counted(len(planned), 'launch')}, one after another, on {gpus_text(largest.plan.tasks)}"
    )


def _largest(launches: Sequence[Launch]) -> Launch:
    """Of the study, not of what is left of it: each allocation has the same shape."""
    return max(launches, key=lambda launch: launch.gpus)


def _discard_unbegun(work: Work) -> None:
    """Remove the run directories of launches whose allocation is over and never began them: they hold nothing."""
    runs = [(launch, run) for launch in work.launches for run in work.campaign.runs(launch.key)]
    unbegun = [(launch, run) for launch, run in runs if not has_begun(run)]
    known = states([run for _, run in unbegun])
    for launch, run in unbegun:
        record = run.submitted
        if record is not None and never_began(run, record, known.get(run.path)):
            work.campaign.note("never-began", launch.key, [run])
            directory.discard(run)


def _wait(work: Work) -> None:
    """Until each launch has ended and was judged, or the allocation has."""
    for launch, run in separate.open_runs_of(work.campaign, work.launches):
        tasks = run.tasks

        def on_progress(now: JobProgress, tasks: int = tasks) -> None:
            work.listener.progress(now, tasks)

        if not _begins(run, on_progress):
            work.listener.warn(
                f"{launch.key} and what follows it have not begun, and the allocation is over{_why(work.campaign)}; "
                f"for what is missing: `{work.campaign.goes_on}`"
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


def _why(study: Campaign) -> str:
    """Why the last allocation did not run all of its launches, where its script could tell."""
    own = allocation.allocations(study.path)[-1]
    try:
        return _WHY.get((own.path / STOPPED).read_text().strip(), "")
    except OSError:
        return ""
