"""A sweep: the runs of one program with other values, each a job of its own, or a task of an array.

SWEEP/arrays/1/     of an array: its script, and a link to the run directory of each task, named by its number
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import msgspec

from runner.backends.runtimes import common, runtime
from runner.backends.schedulers import scheduler_module
from runner.core.errors import NotAcceptedError, RefusedError
from runner.core.text import counted
from runner.jobs.creation import write_script
from runner.jobs.directory import JOB, SCRIPT, Run
from runner.jobs.states import cancel_run
from runner.model.backends import SCHEDULERS
from runner.model.job import CommandLine, Sweep
from runner.model.plan import Finding
from runner.model.request import Request
from runner.model.step import JobScript
from runner.model.study import Launch
from runner.preparation.job import PreparedJob, command_of, make_launch, scheduler_for
from runner.preparation.sweep import combinations, filled_request
from runner.study import separate
from runner.study.directory import SweepDirectory, create_sweep
from runner.study.question import check_user_budget
from runner.study.separate import Listener, Work


@dataclass(frozen=True)
class PreparedSweep:
    """The jobs of a sweep by their numbers, planned, checked and rendered.

    Attributes:
        name: of its jobs, before their numbers. values: of each. at_once: how many may run at one time; None for any.
    """

    name: str
    values: Mapping[str, Mapping[str, str]]
    jobs: Mapping[str, PreparedJob]
    at_once: int | None

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Of the checks, over all jobs, each once."""
        return tuple(dict.fromkeys(each for job in self.jobs.values() for each in job.findings))

    def array_script(self, tasks: int) -> JobScript | None:
        """The script of an array of so many of them; None where they can be none: the scheduler has no arrays, or they
        ask it for different things. Raises UsageError: see ``SchedulerModule.render``.
        """
        plans = [msgspec.structs.replace(job.plan, job_name=self.name) for job in self.jobs.values()]
        if not SCHEDULERS[plans[0].started_by].arrays or not 1 < len(plans) >= tasks > 0:
            return None
        render = scheduler_module(plans[0].started_by).render_array
        steps = (common.staged_step(plan, runtime(plan.runtime)) for plan in plans)
        first, *others = (render(plan, step, tasks, self.at_once) for plan, step in zip(plans, steps, strict=True))
        return first if all(each == first for each in others) else None


def prepare_sweep(
    request: Request,
    swept: Mapping[str, Sequence[str]],
    at_once: int | None,
    prepare: Callable[[Request], PreparedJob],
) -> PreparedSweep:
    """Prepare each run, as ``prepare`` does one job. Raises UsageError: the values are wrong;
    RefusedError: RUNNER_BUDGET does not leave enough for all; else as ``prepare``."""
    values = combinations(swept)
    name = request.job_name or prepare(filled_request(request, values["1"], None)).plan.job_name
    jobs = {key: prepare(filled_request(request, each, f"{name}.{key}")) for key, each in values.items()}
    if not any(job.is_refused for job in jobs.values()):
        check_user_budget(request, math.fsum(job.plan.most_gpu_hours for job in jobs.values()))
    return PreparedSweep(name, values, jobs, at_once)


def start(made: PreparedSweep, command: CommandLine, listener: Listener) -> SweepDirectory:
    """Submit a sweep that no check refuses. It returns when each run is in the queue; where nothing gives out nodes, or
    there are no arrays and not all may run at once, it starts one when another has ended.

    Raises:
        RefusedError: they are several arrays, and not all may run at once. Else as ``runner.preparation.job.start``.
    """
    first, count = next(iter(made.jobs.values())), len(made.jobs)
    most = 0
    if made.array_script(count) is not None:
        most = min(count, scheduler_module(first.plan.started_by).array_size(scheduler_for(first).clients))
    if made.at_once is not None and 0 < most < count:
        fix = f"make sweeps of at most {most} runs, or leave --at-once out"
        raise RefusedError(f"{count} runs are several arrays here, which run side by side", where="--at-once", fix=fix)
    asked = Sweep({key: dict(each) for key, each in made.values.items()}, command)
    sweep = create_sweep(Path(first.request.runs), made.name, asked, time.time())
    listener.tell(f"sweep {sweep.path.name}: {sweep.path}")
    with sweep.exclusive(listener.tell):
        if most:
            left = iter(made.jobs.items())
            while jobs := dict(islice(left, most)):
                _submit_array(sweep, made, jobs, listener)
        else:
            launches = [Launch(key, job.plan.gpus, "full", 1, int(key)) for key, job in made.jobs.items()]
            work = Work(sweep, launches, lambda launch: made.jobs[launch.key], listener, limit=1, at_once=made.at_once)
            separate.carry_out(work, launches)
    return sweep


def _submit_array(
    sweep: SweepDirectory, made: PreparedSweep, jobs: Mapping[str, PreparedJob], listener: Listener
) -> None:
    """Make the run directories of these, and submit the array that runs them from its own directory."""
    own = sweep.path / "arrays" / next(iter(jobs))
    own.mkdir(mode=0o700, parents=True)
    runs: list[Run] = []
    for task, (key, job) in enumerate(jobs.items(), 1):
        place = own / str(task)
        runs.append(make_launch(job, sweep.launches(key), place=str(place), command=command_of(job)))
        place.symlink_to(runs[-1].path)
    script = made.array_script(len(runs))
    assert script is not None, "a smaller array of the same jobs is one, too"
    write_script(own, script)
    try:
        job_id, refused = scheduler_for(next(iter(jobs.values()))).submit(own, SCRIPT), None
    except NotAcceptedError as error:
        job_id, refused = "", error
    for task, (key, run) in enumerate(zip(jobs, runs, strict=True), 1):
        if (record := run.submitted) is not None:
            changed = {"refused": refused.what} if refused else {"job_id": f"{job_id}_{task}"}
            run.write(JOB, msgspec.structs.replace(record, **changed))
        if not refused:
            sweep.note("launched", key, [run])
    if refused:
        raise refused
    listener.tell(f"job {job_id}: an array of {counted(len(runs), 'run')}")
    if sweep.is_stopped:  # since it was looked at: `cancel` may not have seen these jobs
        for run in runs:
            cancel_run(run)
