"""The batch script of a study's one allocation in Slurm: the nodes in a fixed order, then the launches one by one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from runner.backends.schedulers.launches import LAUNCHES, on_nodes
from runner.backends.schedulers.script_parts import COMMON, SHELL, STRICT, SUPERVISE
from runner.backends.schedulers.slurm.script import SLURM, directives, find_nodes
from runner.model.exit_codes import NO_RUN_DIRECTORY
from runner.model.job import ListedLaunch
from runner.model.plan import Plan
from runner.model.script import JobScript
from runner.model.step import JOB_ID, StepSpec
from runner.render.library import checked, job_script

_LAUNCHES = SHELL / "slurm-launches.sh"


def render(plan: Plan, step: StepSpec, launches: Iterable[ListedLaunch]) -> JobScript:
    """The whole batch script.

    Args:
        plan: of a job as large as the largest launch, whose time limit is that of all of them together.

    Raises:
        UsageError: a value that bash or sbatch could not take as it is; says which.
    """
    files = (COMMON, SLURM, SUPERVISE, LAUNCHES, _LAUNCHES)
    return job_script(_parts(plan, step, launches, files), files)


def _parts(plan: Plan, step: StepSpec, launches: Iterable[ListedLaunch], files: tuple[Path, ...]) -> Iterator[str]:
    yield "#!/bin/bash"
    yield from directives(plan, step)
    yield "# The launches of a study, one after another, each with all that this job has of its nodes."
    yield STRICT
    yield f"{JOB_ID}=$SLURM_JOB_ID"
    yield f'cd -- "$SLURM_SUBMIT_DIR" || exit {NO_RUN_DIRECTORY}'
    yield checked(files, *files)
    yield 'unset -v "${!SQUEUE_@}" "${!SCONTROL_@}"'
    yield "trap runner_mark EXIT\n"
    yield find_nodes(plan)
    yield "runner_order_nodes   # those of one switch side by side"
    yield "runner_cpus=$(runner_fewest_cpus)"
    yield f"runner_limit={plan.walltime_s}   # seconds"
    yield "runner_expect_launches\n"
    yield "# Run directory; seconds that must be left; CPUs of a node; its nodes."
    yield from map(on_nodes, launches)
    yield "runner_end_launches\n"
