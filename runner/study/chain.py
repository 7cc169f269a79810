"""A chain: attempts at one job until its program is done, each an ordinary run, in a group as those of a sweep are. All
run directories are made before the first job is submitted; each job queues the next (``chain.sh``).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import msgspec

from runner.core.errors import NotAcceptedError, RefusedError, UsageError
from runner.jobs.directory import Run
from runner.jobs.life import finish
from runner.jobs.states import cancel_run
from runner.model.backends import RUNTIMES, SCHEDULERS
from runner.model.job import CommandLine, Sweep
from runner.model.plan import RESULTS, Plan
from runner.model.request import Mount
from runner.model.verdict import Verdict
from runner.preparation import job
from runner.preparation.job import PreparedJob
from runner.study.directory import CHECKPOINTS, SweepDirectory, create_sweep, next_attempt
from runner.study.question import check_user_budget


def first_attempt(prepared: PreparedJob, most: int, gpu_hours: float | None) -> PreparedJob:
    """The job as the first of at most so many attempts, which may take so many GPU-hours by their time limits (None:
    any). Raises RefusedError: there are no chains, or RUNNER_BUDGET does not leave enough; UsageError: one takes more.
    """
    site, one = prepared.site, prepared.plan.most_gpu_hours
    if not (SCHEDULERS[site.scheduler].chains and site.chaining):
        why = "chaining: no" if not site.chaining else SCHEDULERS[site.scheduler].title
        what = f"a job of {site.name} ({why}) cannot queue the next"
        raise RefusedError(what, where="--until-done", fix="leave it out, and submit again when the job has ended")
    most = most if gpu_hours is None else min(most, int(gpu_hours / one + 1e-9))
    if most < 1:
        what = f"one attempt may take {one:.2f} GPU-hours by its time limit"
        raise UsageError(what, where="--gpu-hours", fix="raise it, or lower --time")
    check_user_budget(prepared.request, one * most)
    return job.as_launch(prepared, with_attempt(prepared.plan, Path(prepared.request.runs) / "NAME-chain", 1, most))


def with_attempt(plan: Plan, chain: Path, number: int, most: int) -> Plan:
    """The plan as an attempt's. A container sees the checkpoints in the run directory: no image needs a mount point."""
    host, seen = str(chain / CHECKPOINTS), f"{RESULTS}/{CHECKPOINTS}"
    name = plan.job_name.rpartition(".")[0] if plan.attempt else plan.job_name
    mounts = tuple(mount for mount in plan.mounts if mount.target != seen)
    is_mounted = RUNTIMES[plan.runtime].is_container and not plan.host_paths
    mounts, seen = ((*mounts, Mount(host, seen)), seen) if is_mounted else (mounts, host)
    env = dict(plan.env) | {"RUNNER_ATTEMPT": str(number), "RUNNER_CHECKPOINT_DIR": seen}
    changed = {"job_name": f"{name}.{number}", "env": tuple(sorted(env.items())), "mounts": mounts}
    return msgspec.structs.replace(plan, **changed, attempt=number, attempts=most)


def start(first: PreparedJob, command: CommandLine) -> tuple[Run, str]:
    """Make all attempts of a chain, and submit the first; returns it and its job's id. Raises as ``job.start``."""
    most, name = first.plan.attempts, first.plan.job_name.rpartition(".")[0]
    asked = Sweep({str(number): {"attempt": str(number)} for number in range(1, most + 1)}, command, is_chain=True)
    chain = create_sweep(Path(first.request.runs), name, asked, time.time())
    (chain.path / CHECKPOINTS).mkdir(mode=0o700)
    for number in range(most, 0, -1):
        attempt = job.as_launch(first, with_attempt(first.plan, chain.path, number, most))
        place = chain.launches(str(number))
        if number > 1:
            job.make_launch(attempt, place, command=job.command_of(attempt))
    try:
        run, job_id = job.start(attempt, place, command=command, estimate=True)
    except NotAcceptedError:
        chain.stop()  # no attempt will ever begin
        raise
    chain.note("launched", "1", [run])
    return run, job_id


def wait(chain: SweepDirectory, warn: Callable[[str], None], *, timeout_s: float | None) -> Verdict:
    """Wait until no attempt follows, and judge them; returns the last one's verdict. Raises as ``life.finish``."""
    until = time.monotonic() + (timeout_s or 0.0)
    run: Run | None = chain.submitted[0]
    while run is not None:
        left_s = None if timeout_s is None else max(0.0, until - time.monotonic())
        verdict = finish(run, lambda _progress: None, warn, timeout_s=left_s)
        if not run.is_needless:  # else it has left the queue
            last = verdict
        run = None if run.is_needless else next_attempt(run)
    return last


def cancel(chain: SweepDirectory) -> tuple[str, ...]:
    """Cancel its jobs, and let no attempt follow; returns their ids. Raises RefusedError as ``Campaign.stop``."""
    chain.stop()
    jobs = []
    for run in chain.submitted:
        with suppress(NotAcceptedError):  # it has left the queue meanwhile
            job_id, had_ended = cancel_run(run)
            jobs += [] if had_ended else [job_id]
    return tuple(jobs)
