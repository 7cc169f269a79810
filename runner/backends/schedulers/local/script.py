"""The batch script of a job on this very machine: plain bash, a function of the plan and its step alone.

``client`` beside this module starts it in a session of its own; ``bash job.sh`` by hand does the same in the
foreground.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from runner.backends.schedulers import script_parts
from runner.backends.schedulers.script_parts import COMMON, SUPERVISE
from runner.core.errors import UsageError
from runner.model.plan import Plan
from runner.model.step import JobScript, StepSpec
from runner.render import checked, job_script

# Whoever started the shell that submits may have been a task itself: its place in that world is not ours.
_STARTERS = ("SLURM", "PMI", "PALS_", "OMPI_COMM_WORLD_", "HOROVOD_GLOO_RENDEZVOUS_", "RUNNER_")
_OTHER_WORLD = "unset -v " + " ".join(f'"${{!{prefix}@}}"' for prefix in _STARTERS)


def render(plan: Plan, step: StepSpec) -> JobScript:
    """The whole script. Raises UsageError: what only a scheduler has, or a value that bash could not take as it is;
    says which.
    """
    if plan.queue is not None:
        raise UsageError("this machine has no queues", where=f"--queue {plan.queue}", fix="leave it out")
    script_parts.refuse_options(plan)
    files = (COMMON, SUPERVISE, *step.files)
    return job_script(_lines(plan, step, files), files)


def _lines(plan: Plan, step: StepSpec, files: tuple[Path, ...]) -> Iterator[str]:
    yield from (
        "#!/bin/bash",
        script_parts.STRICT,
        *([script_parts.ENTER] if plan.owners else []),
        script_parts.INTO_RUN_DIRECTORY,
        checked(files, COMMON, SUPERVISE),
    )
    yield f"{_OTHER_WORLD}   # of whoever started this shell" if step.inherits else "runner_keep_only"
    yield from script_parts.trust(plan)
    yield "runner_end_at_signals"
    yield f"{script_parts.at_end(step)}runner_be_job"
    yield "runner_meet 127.0.0.1 $$\n"
    yield from script_parts.prelude(plan, step)
    yield from script_parts.once_a_node(step, output=' >"logs/node-$(hostname).log" 2>&1')
    yield from script_parts.owners(plan)
    yield "# One process for each GPU. A failure, a signal or the time limit ends them all."
    yield script_parts.rank(step)
    yield f"runner_start_ranks 0 {plan.tasks} {plan.tasks}"
    yield f"runner_supervise {plan.walltime_s} {plan.wait_s}   # seconds"
    yield "runner_exit_as_supervised\n"
