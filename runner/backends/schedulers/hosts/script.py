"""The script of a job on hosts that the user's own ssh reaches: plain bash, a function of the plan and its step alone.

Without an argument it is the job's controller, on the machine that submits; with a node's number, the part of that
node. ``shell/hosts.sh`` says how they go together.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from runner.backends.schedulers import script_parts
from runner.backends.schedulers.hosts.client import command_line
from runner.backends.schedulers.script_parts import COMMON, SUPERVISE
from runner.core.errors import UsageError
from runner.model.plan import Plan
from runner.model.step import JobScript, StepSpec, texts
from runner.render import checked, folded, job_script, quoted_arguments, statement

_HOSTS = script_parts.SHELL / "hosts.sh"


def render(plan: Plan, step: StepSpec) -> JobScript:
    """The whole script. Raises UsageError: what only a scheduler has, or a value that bash could not take as it is;
    says which.
    """
    if plan.queue is not None:
        raise UsageError("a list of hosts has no queues", where=f"--queue {plan.queue}", fix="leave it out")
    script_parts.refuse_options(plan)
    files = (COMMON, SUPERVISE, _HOSTS, *step.files)
    return job_script(_lines(plan, step, files), files)


def _lines(plan: Plan, step: StepSpec, files: tuple[Path, ...]) -> Iterator[str]:
    assert plan.hosts is not None
    yield "#!/bin/bash"
    yield "# Without an argument: the job's controller. With one: the part of the node of that number."
    yield from (
        script_parts.STRICT,
        script_parts.ENTER,
        script_parts.INTO_RUN_DIRECTORY,
        checked(files, COMMON, SUPERVISE, _HOSTS),
    )
    yield f"runner_hosts=({quoted_arguments(texts(*plan.hosts.names))})"
    yield f"runner_counts=({' '.join(map(str, plan.tasks_per_node))})   # ranks of each"
    yield f"runner_ssh=({folded(texts(*command_line(plan.hosts)))})\n"
    yield "if [ $# -eq 0 ]; then   # one ssh for each node; a failure, a signal or the time limit ends them all"
    yield "  runner_end_at_signals"
    yield "  runner_be_job"
    yield "  runner_meet 127.0.0.1 $$" if plan.nodes == 1 else "  runner_meet_at_first"
    yield f"  runner_control {plan.walltime_s} {plan.wait_s}{' environment' if step.inherits else ''}   # seconds"
    yield "fi\n"
    if not step.inherits:
        yield "runner_keep_only RUNNER_JOB_ID 'RUNNER_RDV_*'"
    yield from script_parts.trust(plan)
    yield 'runner_be_node "$1"\n'
    yield from map(statement, step.prelude)
    yield from (f'[ "$runner_node" -ne 0 ] || {line}' for line in script_parts.versions(plan))
    yield ""
    if step.at_end:
        yield f"{script_parts.at_end(step)}trap runner_at_end EXIT\n"
    yield from script_parts.once_a_node(step, output=' >"logs/node-${runner_hosts[runner_node]##*@}.log" 2>&1')
    yield from script_parts.owners(plan)
    yield "# One process for each GPU of this node."
    yield script_parts.rank(step)
    yield f'runner_start_ranks "$(runner_first_rank)" "${{runner_counts[runner_node]}}" {plan.tasks}'
    yield f"runner_follow_orders {plan.wait_s}   # seconds\n"
