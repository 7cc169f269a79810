"""Sweeps: from a request and values to runs, each a job of its own or a task of an array; and a sweep as it stands.

SWEEP/arrays/1/     of an array: its script, and a link to the run directory of each task, named by its number
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

import msgspec

from runner.backends.runtimes import common, runtime
from runner.backends.schedulers import scheduler_module
from runner.core.errors import Exit, NotAcceptedError, RefusedError, RunnerError, UnknownStateError
from runner.core.invocation import PROGRAM
from runner.jobs.directory import JOB, SCRIPT, Run, write_script
from runner.jobs.facts import list_these
from runner.jobs.life import Warn, finish
from runner.jobs.states import mark_cancelled, scheduler_of
from runner.jobs.watch import REAL_CLOCK, Clock
from runner.model.backends import SCHEDULERS
from runner.model.job import CommandLine
from runner.model.output import ListedRun, SweepCancellation, SweepFacts, SweptFacts
from runner.model.plan import Finding
from runner.model.request import Request
from runner.model.step import JobScript
from runner.model.study import Launch
from runner.model.sweep import Sweep, SweptRun
from runner.preparation.job import PreparedJob, command_of, make_launch, scheduler_for
from runner.preparation.sweep import filled_request, swept_runs
from runner.study import separate
from runner.study.directory import SweepDirectory, create_sweep
from runner.study.separate import Listener, Work

GOOD = frozenset(("measured", "ran"))
_SHORTEST_S, _LONGEST_S = 0.5, 30.0  # between two looks of one that waits
_IN_FLIGHT_S = 30.0  # after which a submission that was killed has reached the scheduler, or never will


@dataclass(frozen=True)
class PreparedSweep:
    """The jobs of a sweep, planned, checked and rendered, in its order. ``name``: of all of them."""

    name: str
    runs: tuple[SweptRun, ...]
    jobs: tuple[PreparedJob, ...]
    at_once: int | None

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Of the checks, over all jobs, each once."""
        return tuple(dict.fromkeys(each for job in self.jobs for each in job.findings))

    @property
    def is_refused(self) -> bool:
        """Whether a check refuses one of them: none must be started."""
        return any(job.is_refused for job in self.jobs)

    def array_script(self, tasks: int) -> JobScript | None:
        """The script of an array of so many of them; None where they can be none: the scheduler has no arrays, or they
        ask it for different things. Raises UsageError: see ``SchedulerModule.render``.
        """
        scheduler = self.jobs[0].plan.started_by
        if not SCHEDULERS[scheduler].arrays or len(self.jobs) < 2:
            return None
        scripts = []
        for job in self.jobs:
            plan = msgspec.structs.replace(job.plan, job_name=self.name)
            step = common.staged_step(plan, runtime(plan.runtime))
            scripts.append(scheduler_module(scheduler).render_array(plan, step, tasks, self.at_once))
        return scripts[0] if all(each == scripts[0] for each in scripts) else None


def prepare_sweep(
    request: Request,
    values: Mapping[str, Sequence[str]],
    at_once: int | None,
    prepare: Callable[[Request], PreparedJob],
) -> PreparedSweep:
    """Prepare each run of a sweep, as ``prepare`` does one job. Raises UsageError: the values are wrong. Else as it."""
    runs = swept_runs(values)
    name = request.job_name or prepare(filled_request(request, runs[0])).plan.job_name
    jobs = tuple(prepare(filled_request(request, run, name)) for run in runs)
    return PreparedSweep(name, runs, jobs, at_once)


def start(
    prepared: PreparedSweep, command: CommandLine, listener: Listener, begun: Callable[[SweepDirectory], None]
) -> SweepDirectory:
    """Submit a sweep that no check refuses: returns when each run is in the queue; where nothing gives out nodes, or
    has no arrays and not all may run at once, it starts one when another has ended.

    Args:
        begun: called once its directory is there.

    Raises:
        RefusedError: more tasks than an array may have are not to run at once. Else as
            ``runner.preparation.job.start``.
    """
    first = prepared.jobs[0]
    size = len(prepared.jobs)
    if prepared.array_script(size) is not None:
        size = min(size, scheduler_module(first.plan.started_by).array_size(scheduler_for(first).clients))
    script = prepared.array_script(size) if size else None
    if script is not None and prepared.at_once is not None and size < len(prepared.jobs):
        fix = "make sweeps of fewer runs, or leave --at-once out"
        raise RefusedError(f"an array here has at most {size} tasks, and arrays run beside each other", fix=fix)
    now = datetime.now(timezone.utc).replace(microsecond=0)
    asked = Sweep("1", "", now, command, prepared.runs, prepared.at_once)
    sweep = create_sweep(Path(first.request.runs), prepared.name, asked, time.time())
    begun(sweep)
    launches = [Launch(run.key, job.plan.gpus, "full", 1, at) for at, (run, job) in _numbered(prepared)]
    with sweep.exclusive(listener.tell):
        if script is None:
            jobs = {launch.key: job for launch, job in zip(launches, prepared.jobs, strict=True)}
            work = Work(sweep, launches, lambda launch: jobs[launch.key], listener, limit=1, at_once=prepared.at_once)
            separate.carry_out(work, launches)
            return sweep
        for number, begin in enumerate(range(0, len(launches), size), 1):
            places = range(begin, min(begin + size, len(launches)))
            _submit_array(sweep, prepared, sweep.path / "arrays" / str(number), places, listener)
    return sweep


def _numbered(prepared: PreparedSweep) -> Iterator[tuple[int, tuple[SweptRun, PreparedJob]]]:
    return enumerate(zip(prepared.runs, prepared.jobs, strict=True))


def _submit_array(sweep: SweepDirectory, prepared: PreparedSweep, own: Path, places: range, listener: Listener) -> None:
    """Make the run directories of these, and submit the array that runs them from its directory."""
    own.mkdir(mode=0o700, parents=True)
    runs: list[Run] = []
    for task, at in enumerate(places, 1):
        job, folder = prepared.jobs[at], sweep.launches(prepared.runs[at].key)
        runs.append(make_launch(job, folder, place=str(own / str(task)), command=command_of(job)))
        (own / str(task)).symlink_to(runs[-1].path)
    script = prepared.array_script(len(runs))
    assert script is not None
    write_script(own, script)
    records = [record for run in runs if (record := run.submitted) is not None]
    try:
        job_id = scheduler_for(prepared.jobs[0]).submit(own, SCRIPT)
    except NotAcceptedError as error:
        for run, record in zip(runs, records, strict=True):
            run.write(JOB, msgspec.structs.replace(record, refused=error.what))
        raise
    for task, (run, record) in enumerate(zip(runs, records, strict=True), 1):
        run.write(JOB, msgspec.structs.replace(record, job_id=f"{job_id}_{task}"))
        sweep.note("launched", run.path.parent.name, [run])
    if sweep.is_stopped:  # since it was looked at: `cancel` may not have seen this job
        cancel(sweep)
    listener.tell(f"job {job_id}: an array of {len(runs)} runs")


def facts(sweep: SweepDirectory) -> SweepFacts:
    """All that is known of a sweep now. Its runs that ended unnoticed are judged, as the list of runs does."""
    is_driven = sweep.is_held
    runs = {each.key: run for each in sweep.sweep.runs if (run := next(iter(sweep.runs(each.key)), None)) is not None}
    known = {Path(row.directory): row for row in list_these(runs.values())}
    rows = tuple(
        _row(sweep, each, known.get(runs[each.key].path) if each.key in runs else None, is_driven=is_driven)
        for each in sweep.sweep.runs
    )
    is_running = is_driven or any(row.state in ("pending", "running") or _is_awaited(row) for row in rows)
    return SweepFacts(
        sweep=sweep.path.name,
        directory=str(sweep.path),
        name=sweep.name,
        state="running" if is_running else "ended",
        created=sweep.sweep.created,
        at_once=sweep.sweep.at_once,
        counts=dict(Counter(row.outcome or row.state for row in rows)),
        runs=rows,
    )


def _row(sweep: SweepDirectory, asked: SweptRun, row: ListedRun | None, *, is_driven: bool) -> SweptFacts:
    values = dict(asked.values)
    if row is None:
        row = ListedRun("", "", f"{sweep.name}.{asked.key}", "", "not-submitted", "", 0, "", None, None)
    known = {name: getattr(row, name) for name in ListedRun.__struct_fields__}
    age_s = time.time() - row.submitted.timestamp() if row.submitted else _IN_FLIGHT_S
    is_lost = row.state == "unknown" and not row.job and age_s >= _IN_FLIGHT_S
    if (is_lost or not row.run) and not is_driven:
        known |= {"state": "not-submitted", "reason": row.reason or "its submission was cut off"}
    elif row.state == "unknown" or not row.run:
        known |= {"state": "pending", "reason": "it is being submitted"} if is_driven and not row.job else {}
    return SweptFacts(values=values, **known)


def _is_awaited(row: SweptFacts) -> bool:
    """Whether its job is over, and it has no verdict yet: its records may still become visible."""
    return row.state == "ended" and row.outcome is None


def wait(sweep: SweepDirectory, warn: Warn, *, timeout_s: float | None, clock: Clock = REAL_CLOCK) -> SweepFacts:
    """The sweep's facts once each run of it that was submitted has ended. One query of the scheduler serves them all.
    Raises UnknownStateError: the time is over.
    """
    began, pause = clock.monotonic(), _SHORTEST_S
    while True:
        now = facts(sweep)
        for row in filter(_is_awaited, now.runs):
            finish(Run(Path(row.directory)), lambda _progress: None, warn, timeout_s=timeout_s, clock=clock)
        if now.state == "ended":
            return now
        if timeout_s is not None and clock.monotonic() - began > timeout_s:
            raise UnknownStateError(
                f"the sweep has not ended within {timeout_s:g} s",
                where=str(sweep.path),
                fix=f"continue with `{PROGRAM} wait {sweep.path.name}`, or `cancel` it",
            )
        clock.sleep(pause)
        pause = min(pause * 1.3, _LONGEST_S)


def cancel(sweep: SweepDirectory) -> SweepCancellation:
    """Cancel all jobs of the sweep that have not ended, an array as one, and let nothing more be submitted. Raises
    UnknownStateError: the scheduler does not answer, or refuses.
    """
    sweep.stop()
    jobs: list[str] = []
    ends: dict[str, Callable[[], None]] = {}
    for row in facts(sweep).runs:
        if not row.directory or row.state not in ("pending", "running", "unknown"):
            continue
        run = Run(Path(row.directory))
        try:
            scheduler, job_id = scheduler_of(run)
        except (NotAcceptedError, UnknownStateError):
            if row.job:
                raise
            continue  # no job of it is known: it was never submitted
        mark_cancelled(run)
        jobs.append(job_id)
        whole = job_id.partition("_")[0]
        ends.setdefault(whole, lambda scheduler=scheduler, whole=whole: scheduler.cancel(whole))  # type: ignore[misc]
    for end in ends.values():
        end()
    return SweepCancellation(sweep.path.name, str(sweep.path), tuple(jobs))


def first_bad(now: SweepFacts) -> tuple[SweptFacts, Exit] | None:
    """The first run that is not good, and its exit code; None where all are."""
    for row in now.runs:
        if row.outcome in GOOD:
            continue
        verdict = Run(Path(row.directory)).verdict if row.outcome else None
        code = Exit.NOT_ACCEPTED if row.state == "not-submitted" else Exit.UNKNOWN
        return row, verdict.exit_code if verdict is not None else code
    return None


def telling_run(sweep: SweepDirectory) -> SweptFacts:
    """The run whose logs tell most: the first that failed, else one that runs, else the last. Raises RunnerError: none
    was submitted.
    """
    begun = [row for row in facts(sweep).runs if row.directory and row.state != "not-submitted"]
    if not begun:
        raise RunnerError("no run of this sweep was submitted", where=str(sweep.path), code=Exit.USAGE)
    bad = [row for row in begun if row.outcome and row.outcome not in GOOD]
    running = [row for row in begun if row.state == "running"]
    return (bad or running or begun[-1:])[0]
