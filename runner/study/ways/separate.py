"""Each launch is a job of its own.

Where the scheduler gives out nodes, all jobs are submitted at once, in the study's order. Where it does not, they would
share this machine or the listed hosts: one is started when the one before has ended.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from runner.core.errors import NotAcceptedError
from runner.jobs import directory
from runner.jobs.directory import Run
from runner.jobs.life import finish
from runner.jobs.states import cancel_run
from runner.jobs.watch import JobProgress
from runner.model.backends import SCHEDULERS
from runner.model.study import Launch
from runner.model.verdict import Verdict
from runner.preparation.job import command_of, start
from runner.study.attempts import attempt_of, states, without_verdict
from runner.study.campaign import Campaign
from runner.study.directory import StudyDirectory
from runner.study.ways import Work

# Trying again may help; anything else would only repeat itself.
_AGAIN = ("infrastructure",)


def carry_out(work: Work, wanted: Sequence[Launch]) -> None:
    """See ``Way``. Where nothing gives out nodes, it always waits."""
    ahead = deque(wanted)
    open_runs = deque(open_runs_of(work.campaign, work.launches))
    if not ahead and not open_runs:
        return
    scheduler = work.prepare(ahead[0]).plan.started_by if ahead else _scheduler(open_runs[0][1])
    one_at_a_time = work.one_at_a_time or SCHEDULERS[scheduler].nodes != "allocated"  # they would share nodes
    waits = work.waits or one_at_a_time
    while ahead or open_runs:
        accepted = True
        while ahead and accepted and not (open_runs and one_at_a_time) and not work.campaign.is_stopped:
            accepted = _start(work, ahead, open_runs)
        if not waits or (work.campaign.is_stopped and not open_runs):
            return
        launch, run = open_runs.popleft()
        verdict = finished(work, launch, run)
        if verdict.outcome in _AGAIN and len(work.campaign.runs(launch.key)) < work.limit:
            work.listener.tell(f"{launch.key}: trying again")
            ahead.appendleft(launch)


def cancel(study: StudyDirectory) -> tuple[str, ...]:
    """See ``Way``."""
    cancelled = []
    for _launch, run in open_runs_of(study, study.study.launches):
        job_id, had_ended = cancel_run(run)
        if not had_ended:
            cancelled.append(job_id)
    return tuple(cancelled)


def _start(work: Work, ahead: deque[Launch], open_runs: deque[tuple[Launch, Run]]) -> bool:
    """Start the first; whether the scheduler took it. While others are in the queue, a refusal may be a limit on how
    many may be there: it is tried again when one has ended.
    """
    launch = ahead[0]
    prepared = work.prepare(launch)
    try:
        run, job_id = start(prepared, work.campaign.launches(launch.key), command=command_of(prepared))
    except NotAcceptedError as error:
        if open_runs and work.waits:
            directory.discard(work.campaign.runs(launch.key)[-1])
            return False
        error.fix += f"; what is missing then: `{work.campaign.goes_on}`"
        raise
    work.campaign.note("launched", launch.key, [run])
    ahead.popleft()
    open_runs.append((launch, run))
    if work.campaign.is_stopped:  # since it was looked at: `cancel` may not have seen this job
        cancel_run(run)
    work.listener.tell(f"{launch.key}: run {run.run_id}, job {job_id}")
    return True


def finished(work: Work, launch: Launch, run: Run) -> Verdict:
    """Wait until a launch has ended; tells its verdict."""
    tasks = run.tasks

    def on_progress(progress: JobProgress) -> None:
        work.listener.progress(progress, tasks)

    verdict = finish(run, on_progress, work.listener.warn)
    figure = f", {verdict.images_per_s:.1f} {verdict.unit}/s" if verdict.images_per_s is not None else ""
    why = f": {verdict.reasons[0]}" if verdict.reasons else ""
    work.listener.tell(f"{launch.key}: {verdict.outcome}{figure}{why}")
    return verdict


def open_runs_of(campaign: Campaign, launches: Sequence[Launch]) -> list[tuple[Launch, Run]]:
    """Runs of these launches whose jobs are not over, in their order."""
    runs = [(launch, run) for launch in launches for run in campaign.runs(launch.key)]
    unsettled = without_verdict(run for _, run in runs)
    known = states(unsettled)
    paths = {run.path for run in unsettled}
    made = [(each, attempt_of(each[1], known.get(each[1].path))) for each in runs if each[1].path in paths]
    return [each for each, attempt in made if attempt is not None and not attempt.gone]


def _scheduler(run: Run) -> str:
    record = run.submitted
    assert record is not None, "a run that has no record of its job is not open"
    return record.scheduler
