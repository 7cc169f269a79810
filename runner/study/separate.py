"""What a study's launches are started with, and the plain way: each launch is a job of its own.

Where the scheduler gives out nodes, all jobs are submitted at once, in the study's order. Where it does not, they would
share this machine or the listed hosts: one is started when the one before has ended.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from runner.core.errors import NotAcceptedError
from runner.core.text import counted, rate
from runner.jobs import creation
from runner.jobs.campaign import Campaign
from runner.jobs.directory import Run
from runner.jobs.life import finish
from runner.jobs.lookup import was_refused
from runner.jobs.states import cancel_run
from runner.jobs.watch import JobProgress
from runner.model.backends import SCHEDULERS
from runner.model.study import COMES_AGAIN, Launch
from runner.model.verdict import Verdict
from runner.preparation.job import PreparedJob, command_of, start
from runner.study.attempts import attempt_of, states, without_verdict
from runner.study.directory import StudyDirectory


@dataclass(frozen=True)
class Listener:
    """What is called on the way: with lines about launches, with the state of the job that is waited for (and the
    number of its ranks), and with warnings.
    """

    tell: Callable[[str], None]
    progress: Callable[[JobProgress, int], None]
    warn: Callable[[str], None]


@dataclass(frozen=True)
class Work:
    """What launches are started with.

    Attributes:
        launches: all of the campaign, in their order.
        prepare: the launch as a job of its own, exactly as ``submit`` would prepare it; cached by point.
        waits: go on until every launch has ended. limit: how many runs a launch may have.
        at_once: how many may be in the queue or run at one time; None for any number.
        waits_for_first: the first launch of a user's program shows whether it measures anything, before others start.
    """

    campaign: Campaign
    launches: Sequence[Launch]
    prepare: Callable[[Launch], PreparedJob]
    listener: Listener
    waits: bool = False
    limit: int = 3
    at_once: int | None = None
    waits_for_first: bool = False


def carry_out(work: Work, wanted: Sequence[Launch]) -> None:
    """Start these launches in their order; where ``work.waits``, or nothing gives out nodes, return when each has ended
    and was judged. The campaign is held meanwhile. Nothing more is started once ``work.campaign.is_stopped``.

    Raises:
        WaitInterrupted: Ctrl-C while it waits; jobs go on. Else as ``runner.preparation.job.start``.
    """
    ahead = deque(wanted)
    open_runs = deque(open_runs_of(work.campaign, work.launches))
    if not ahead and not open_runs:
        return
    record = None if ahead else open_runs[0][1].submitted
    scheduler = record.scheduler if record else work.prepare(ahead[0]).plan.started_by
    one_at_a_time = SCHEDULERS[scheduler].nodes != "allocated"  # they would share nodes
    on_trial = bool(ahead) and work.waits_for_first and not _has_measured(work, ahead[0])
    while ahead or open_runs:
        accepted, most = True, 1 if one_at_a_time or on_trial else work.at_once
        while ahead and accepted and not (most and len(open_runs) >= most) and not work.campaign.is_stopped:
            accepted = _start(work, ahead, open_runs)
        waits = work.waits or one_at_a_time or (ahead and not work.campaign.is_stopped)
        if not waits or (work.campaign.is_stopped and not open_runs):
            return
        launch, run = open_runs.popleft()
        verdict = finished(work, launch, run)
        # Trying again may help there; anything else would only repeat itself.
        if verdict.outcome == "infrastructure" and len(work.campaign.runs(launch.key)) < work.limit:
            work.listener.tell(f"{launch.key}: trying again")
            ahead.appendleft(launch)
        elif on_trial and verdict.outcome in COMES_AGAIN and ahead:
            work.listener.tell(f"nothing more is started: {counted(len(ahead), 'launch')} more would end so, too")
            return
        else:
            on_trial = False


def _has_measured(work: Work, first: Launch) -> bool:
    """Whether a launch is measured already, or the program is a recipe's, which is known to measure."""
    if work.prepare(first).plan.result != "if-left":
        return True
    runs = (run for launch in work.launches for run in work.campaign.runs(launch.key))
    return any((verdict := run.verdict) is not None and verdict.outcome == "measured" for run in runs)


def cancel(study: StudyDirectory) -> tuple[str, ...]:
    """Cancel all jobs of the study that have not ended; returns their ids."""
    cancelled = [cancel_run(run) for _, run in open_runs_of(study, study.study.launches)]
    return tuple(job_id for job_id, had_ended in cancelled if not had_ended)


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
            for refused in filter(was_refused, work.campaign.runs(launch.key)):
                creation.discard(refused)
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
    verdict = finish(run, lambda progress: work.listener.progress(progress, tasks), work.listener.warn)
    figure = f", {rate(verdict.images_per_s)} {verdict.unit}/s" if verdict.images_per_s is not None else ""
    why = f": {verdict.why_unmeasured}" if verdict.why_unmeasured else ""
    work.campaign.note_measured(launch.key, run)
    work.listener.tell(f"{launch.key}: {verdict.outcome}{figure}{why}")
    return verdict


def open_runs_of(campaign: Campaign, launches: Sequence[Launch]) -> list[tuple[Launch, Run]]:
    """Runs of these launches whose jobs are not over, in their order."""
    runs = {run.path: (launch, run) for launch in launches for run in campaign.runs(launch.key)}
    unsettled = without_verdict(run for _, run in runs.values())
    known = states(unsettled)
    made = [(runs[run.path], attempt_of(run, known.get(run.path))) for run in unsettled]
    return [each for each, attempt in made if attempt is not None and not attempt.gone]
