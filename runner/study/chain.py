"""A chain: attempts at one job, each an ordinary run, until its program is done. They are a group as the runs of a
sweep are. All run directories are made before the first is submitted; each job queues the next (``chain.sh``).

CHAIN/checkpoints/      of all attempts; the program makes ``done`` in it
CHAIN/ended             the reason why no attempt follows
"""

from __future__ import annotations

import time
from pathlib import Path

import msgspec

from runner.core.errors import RefusedError, UsageError
from runner.jobs.directory import Run
from runner.jobs.submission import submit_made
from runner.model.backends import RUNTIMES, SCHEDULERS
from runner.model.job import CommandLine, Sweep
from runner.model.plan import RESULTS, Attempt, Plan
from runner.model.request import PLAIN_NAME, PLAIN_NAME_FIX, Mount
from runner.preparation.job import PreparedJob, as_launch, command_of, make_launch, scheduler_for
from runner.study.directory import SweepDirectory, create_sweep
from runner.study.question import check_user_budget

CHECKPOINTS = "checkpoints"


def most_seconds(prepared: PreparedJob, gpu_hours: float | None) -> int:
    """How long all attempts together may run; 0 for any time. Raises RefusedError: no job can be a chain there;
    UsageError: the limit leaves no time for one attempt.
    """
    site, plan = prepared.site, prepared.plan
    if not SCHEDULERS[site.scheduler].chains:
        what = f"no job of {SCHEDULERS[site.scheduler].title} queues the next attempt here"
        raise RefusedError(what, where="--until-done", fix="leave it out, and submit again from the last checkpoint")
    if site.chaining is False:
        what = f"{site.name} does not let a job queue the next one (chaining: no)"
        raise RefusedError(what, where="--until-done", fix="leave it out, and submit again when the job has ended")
    if gpu_hours is None:
        return 0
    if gpu_hours < plan.most_gpu_hours:
        what = f"one attempt may take {plan.most_gpu_hours:.2f} GPU-hours by its time limit"
        raise UsageError(what, where="--gpu-hours", fix="raise it, or lower --time")
    return int(gpu_hours / plan.most_gpu_hours * plan.walltime_s)


def attempt_of(prepared: PreparedJob, number: int, most: int, most_s: int, chain: Path) -> PreparedJob:
    """One attempt of the chain in that directory. Raises UsageError: the job's name would be too long, or the runtime
    cannot show that directory.
    """
    plan, name = prepared.plan, f"{prepared.plan.job_name}.{number}"
    if not PLAIN_NAME.match(name):
        raise UsageError(f"{name!r} cannot be a job's name", where="--name", fix=PLAIN_NAME_FIX)
    return as_launch(prepared, with_attempt(plan, name, Attempt(number, most, most_s), chain))


def with_attempt(plan: Plan, name: str, attempt: Attempt, chain: Path) -> Plan:
    """The plan as an attempt's, with what its ranks get for that. Ranks see the checkpoints in the run directory: a
    container, for which the image need not have a mount point, by a mount, others by a link.
    """
    seen = f"{RESULTS}/{CHECKPOINTS}"  # on the host a runtime puts the run directory in its place
    env = {**dict(plan.env), "RUNNER_ATTEMPT": str(attempt.number), "RUNNER_CHECKPOINT_DIR": seen}
    by_mount = RUNTIMES[plan.runtime].is_container and not plan.host_paths
    mounts = (*plan.mounts, *((Mount(str(chain / CHECKPOINTS), seen),) if by_mount else ()))
    return msgspec.structs.replace(plan, job_name=name, attempt=attempt, env=tuple(sorted(env.items())), mounts=mounts)


def start(prepared: PreparedJob, most: int, gpu_hours: float | None, command: CommandLine) -> SweepDirectory:
    """Make all attempts of a chain, and submit the first.

    Raises:
        RefusedError: RUNNER_BUDGET does not leave enough for all. Else as ``runner.preparation.job.start``.
    """
    most_s, hours = most_seconds(prepared, gpu_hours), prepared.plan.most_gpu_hours * most
    check_user_budget(prepared.request, hours if gpu_hours is None else min(hours, gpu_hours))
    asked = Sweep({str(number): {"attempt": str(number)} for number in range(1, most + 1)}, command, is_chain=True)
    chain = create_sweep(Path(prepared.request.runs), prepared.plan.job_name, asked, time.time())
    (chain.path / CHECKPOINTS).mkdir(mode=0o700)
    runs: list[Run] = []
    for number in range(1, most + 1):
        job = attempt_of(prepared, number, most, most_s, chain.path)
        place = chain.launches(str(number))
        runs.append(make_launch(job, place, command=command_of(job), by_attempt=number > 1))
        if job.plan.mounts == prepared.plan.mounts:
            (runs[-1].path / CHECKPOINTS).symlink_to(f"../../../{CHECKPOINTS}")
        else:
            (runs[-1].path / CHECKPOINTS).mkdir()
    record = runs[0].submitted
    assert record is not None, "it was just made"
    submit_made(runs[0], record, scheduler_for(prepared), estimate=True)
    chain.note("launched", "1", runs[:1])
    return chain
