"""The batch script of a job on this very machine: plain bash, a function of the plan and its step alone.

``client`` beside this module starts it in a session of its own; ``bash job.sh`` by hand does the same in the
foreground.
"""

from __future__ import annotations

from runner.backends.schedulers import supervised_script, versions
from runner.backends.schedulers.script_parts import CLEANUP_LOG, KEY, node_log, port
from runner.backends.schedulers.supervised_script import GRACE_S
from runner.core.errors import UsageError
from runner.model.exit_codes import NO_RUN_DIRECTORY, NODE_NOT_READY
from runner.model.plan import Plan
from runner.model.step import StepSpec
from runner.render.shell import folded, statement

# Whoever started the shell that submits may have been a task itself: its place in that world is not ours.
_STARTERS = ("SLURM", "PMI", "PALS_", "OMPI_COMM_WORLD_", "HOROVOD_GLOO_RENDEZVOUS_", "RUNNER_")


def render(plan: Plan, step: StepSpec) -> str:
    """The whole script.

    Raises:
        UsageError: what only a scheduler has, or a value that bash could not take as it is; says which.
    """
    if plan.queue is not None:
        raise UsageError("this machine has no queues", where=f"--queue {plan.queue}", fix="leave it out")
    parts = [
        "#!/bin/bash",
        "set -uo pipefail",
        "umask 077",
        supervised_script.without(_STARTERS) if step.inherits else supervised_script.only(),
        'export USER="${USER:-$(id -un)}"',
        supervised_script.into_run_directory(NO_RUN_DIRECTORY),
        supervised_script.OWN_JOB_ID,
        supervised_script.marker(f"{folded(step.at_end, indent='    ')} {CLEANUP_LOG}" if step.at_end else ""),
        supervised_script.TRAPS,
        f"export RUNNER_RDV_HOST=127.0.0.1\nexport {port('$$')}\n{KEY}\n",
        *(statement(entry) for entry in step.prelude),
        "",
        *versions.record(plan),
    ]
    if step.once_a_node:
        parts.append(f"{folded(step.once_a_node)} {node_log('$(hostname)')} || exit {NODE_NOT_READY}\n")
    tasks = str(plan.tasks)
    parts += [
        supervised_script.start_ranks(step.command, plan.tasks, count=tasks, rank="$runner_i", local_world=tasks),
        supervised_script.time_limit(plan.walltime_s),
        supervised_script.TELL_RANKS
        + supervised_script.supervision(supervised_script.ranks(str(GRACE_S)), "  sleep 0.2\n", plan.wait_s)
        + supervised_script.ENDING,
    ]
    return "\n".join(parts)
