"""The script of a study's one allocation: it runs the launches' own scripts, as ``shell/launches.sh`` says."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from runner.backends.schedulers.script_parts import COMMON, INTO_RUN_DIRECTORY, SHELL, STRICT, SUPERVISE
from runner.backends.schedulers.slurm.script import SLURM, directives, find_nodes
from runner.model.exit_codes import NO_RUN_DIRECTORY
from runner.model.job import ListedLaunch
from runner.model.plan import Plan
from runner.model.step import JOB_ID, JobScript, StepSpec, texts
from runner.render import checked, job_script, quoted_arguments

LAUNCHES = SHELL / "launches.sh"


def on_this_machine(plan: Plan, _step: StepSpec, launches: Iterable[ListedLaunch]) -> JobScript:
    """The script where no scheduler gives an allocation: one process of this machine, so that no two launches overlap.

    Args:
        plan: of a job as large as the largest launch, whose time limit is that of all of them together.
    """
    files = (COMMON, SUPERVISE, LAUNCHES)
    parts = (
        "#!/bin/bash",
        "# The launches of a study, one after another.",
        STRICT,
        INTO_RUN_DIRECTORY,
        checked(files, *files),
        "runner_be_job",
        f"runner_limit={plan.walltime_s}   # seconds",
        "runner_expect_launches\n",
        "# Run directory; seconds that must be left.",
        *(f"{_function(launch)} {_arguments(launch)}" for launch in launches),
        "runner_end_launches\n",
    )
    return job_script(parts, files)


def _function(launch: ListedLaunch) -> str:
    return "runner_begin" if launch.with_next else "runner_launch"


def _arguments(launch: ListedLaunch) -> str:
    return quoted_arguments(texts(launch.directory, str(launch.needs_s)))


def on_nodes(launch: ListedLaunch) -> str:
    """The line that runs a launch on its nodes of an allocation."""
    nodes = f'"${{runner_nodes[@]:{launch.first_node}:{launch.nodes}}}"'
    return f'{_function(launch)} {_arguments(launch)} "$runner_cpus" {nodes}'


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
