"""A chain: attempts at one job, each an ordinary run, until its program is done. They are a group as the runs of a
sweep are. All run directories are made before the first is submitted; each job queues the next (``chain.sh``).
"""

from __future__ import annotations

import time
from pathlib import Path

import msgspec

from runner.core.errors import RefusedError, UsageError
from runner.jobs.submission import submit_made
from runner.model.backends import RUNTIMES, SCHEDULERS
from runner.model.job import CommandLine, Sweep
from runner.model.plan import RESULTS, Plan
from runner.model.request import PLAIN_NAME, PLAIN_NAME_FIX, Mount
from runner.preparation.job import PreparedJob, as_launch, command_of, make_launch, scheduler_for
from runner.study.directory import SweepDirectory, create_sweep
from runner.study.question import check_user_budget

_CHECKPOINTS = "checkpoints"  # in the chain's directory, and in each run directory, as its ranks see it


def attempt_of(job: PreparedJob, chain: Path, number: int, most: int, gpu_hours: float | None) -> PreparedJob:
    """One attempt of the chain in that directory; ``gpu_hours``: of all, None for any. Raises RefusedError: the site
    has no chains; UsageError: a limit leaves no time for one attempt, or the job's name is too long.
    """
    plan, scheduler = job.plan, SCHEDULERS[job.plan.scheduler]
    if not (scheduler.chains and job.site.chaining):
        why = f"{job.site.name} does not let them (chaining: no)" if scheduler.chains else f"it is {scheduler.title}"
        fix = "leave it out, and submit again when the job has ended"
        raise RefusedError(f"a job cannot queue the next attempt here: {why}", where="--until-done", fix=fix)
    if gpu_hours is not None and gpu_hours < plan.most_gpu_hours:
        what = f"one attempt may take {plan.most_gpu_hours:.2f} GPU-hours by its time limit"
        raise UsageError(what, where="--gpu-hours", fix="raise it, or lower --time")
    most_s = 0 if gpu_hours is None else int(gpu_hours / plan.most_gpu_hours * plan.walltime_s)
    made = with_attempt(plan, chain, number, most, most_s)
    if not PLAIN_NAME.match(made.job_name):
        raise UsageError(f"{made.job_name!r} cannot be a job's name", where="--name", fix=PLAIN_NAME_FIX)
    return as_launch(job, made)


def with_attempt(plan: Plan, chain: Path, number: int, most: int, most_s: int) -> Plan:
    """The plan as an attempt's. A container sees the checkpoints by a mount in the run directory, for which no image
    needs a mount point, other ranks by a link there.
    """
    seen = f"{RESULTS}/{_CHECKPOINTS}"
    env = dict(plan.env) | {"RUNNER_ATTEMPT": str(number), "RUNNER_CHECKPOINT_DIR": seen}
    by_mount = RUNTIMES[plan.runtime].is_container and not plan.host_paths
    mounts = (*plan.mounts, *((Mount(str(chain / _CHECKPOINTS), seen),) if by_mount else ()))
    return msgspec.structs.replace(
        plan, job_name=f"{plan.job_name}.{number}", env=tuple(sorted(env.items())), mounts=mounts,
        attempt=number, attempts=most, attempts_s=most_s,
    )  # fmt: skip


def start(job: PreparedJob, most: int, gpu_hours: float | None, command: CommandLine) -> SweepDirectory:
    """Make all attempts of a chain, and submit the first. Raises RefusedError: RUNNER_BUDGET does not leave enough for
    all; else as ``attempt_of`` and ``runner.preparation.job.start``.
    """
    hours = job.plan.most_gpu_hours * most
    check_user_budget(job.request, hours if gpu_hours is None else min(hours, gpu_hours))
    numbers = [str(number) for number in range(1, most + 1)]
    asked = Sweep({number: {"attempt": number} for number in numbers}, command, is_chain=True)
    chain = create_sweep(Path(job.request.runs), job.plan.job_name, asked, time.time())
    (chain.path / _CHECKPOINTS).mkdir(mode=0o700)
    for number in numbers:
        attempt = attempt_of(job, chain.path, int(number), most, gpu_hours)
        run = make_launch(attempt, chain.launches(number), command=command_of(attempt), by_attempt=number != "1")
        if attempt.plan.mounts == job.plan.mounts:
            (run.path / _CHECKPOINTS).symlink_to(f"../../../{_CHECKPOINTS}")
        else:
            (run.path / _CHECKPOINTS).mkdir()
    first = chain.runs("1")
    submit_made(first[0], scheduler_for(job), estimate=True)
    chain.note("launched", "1", first)
    return chain
