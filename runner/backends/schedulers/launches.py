"""The script of a study's one allocation: it runs the launches' own scripts, as ``shell/launches.sh`` says."""

from __future__ import annotations

from collections.abc import Iterable

from runner.backends.schedulers.script_parts import COMMON, INTO_RUN_DIRECTORY, SHELL, STRICT, SUPERVISE
from runner.model.job import ListedLaunch
from runner.model.plan import Plan
from runner.model.script import JobScript
from runner.model.step import StepSpec, texts
from runner.render.library import checked, job_script
from runner.render.shell import quoted_arguments

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
