"""The batch script for Flux (flux-core 0.60, flux-batch(1) and flux-run(1)): a function of the plan and its step alone.

UNPROVEN: written from the manual, and never run.
"""

from __future__ import annotations

from collections.abc import Iterator

from runner.errors import UsageError
from runner.model.plan import Plan
from runner.model.step import RUN_DIRECTORY, Argument, StepSpec, Text, Var, texts
from runner.render.directives import one_line
from runner.render.shell import folded, quote, statement
from runner.schedulers.script_parts import TAIL, TRAPS, around, head, world

# Flux names a task's rank in its own way, and redirects no task's output into a file of its own.
_TASK = (
    "export RANK=$FLUX_TASK_RANK LOCAL_RANK=$FLUX_TASK_LOCAL_ID WORLD_SIZE=$FLUX_JOB_SIZE LOCAL_WORLD_SIZE=$2; "
    'runner_logs=$1/rank-$RANK; shift 2; exec "$@" >"$runner_logs.out" 2>"$runner_logs.err"'
)


def render(plan: Plan, step: StepSpec) -> str:
    """The whole batch script.

    Raises:
        UsageError: a value that bash or Flux cannot take, or ranks that Flux cannot place.
    """
    if len(set(plan.tasks_per_node)) > 1:
        shown = ",".join(map(str, plan.tasks_per_node))
        raise UsageError(
            f"the script for Flux cannot put {shown} ranks on the nodes",
            where="--nodes",
            fix="ask for a number of GPUs that the nodes divide",
        )
    parts = [
        "#!/bin/bash",
        *_directives(plan, step),
        "set -uo pipefail",
        "umask 077",
        head('$(flux job id --to=dec "$(flux getattr jobid)")', '"$PWD"'),
        world(plan, 'flux hostlist --expand instance | tr " " "\\n"'),
        *(statement(entry) for entry in step.prelude),
        "",
    ]
    parts += around(_once_a_node(plan, step.once_a_node), _once_a_node(plan, step.at_end))
    parts += [TRAPS, f"{folded(tuple(_step(plan, step)))} &", TAIL]
    return "\n".join(parts)


def _directives(plan: Plan, step: StepSpec) -> Iterator[str]:
    """Grouped below the first line; their words are quoted as a shell's (RFC 36)."""
    yield _directive("job-name", plan.job_name)
    if plan.queue is not None:
        yield _directive("queue", plan.queue)
    if plan.account is not None:
        yield _directive("bank", plan.account)
    yield _directive("nodes", str(plan.nodes))
    yield _directive("nslots", str(plan.tasks))
    yield _directive("cores-per-slot", str(plan.cpus_per_task))
    yield _directive("gpus-per-slot", str(plan.gpus_per_task))
    if plan.whole_nodes:
        yield _directive("exclusive", "")
    yield _directive("time-limit", f"{plan.walltime_s}s")
    for option, value in (*plan.directives, *step.directives):
        yield _directive(option, value)
    yield _directive("output", "logs/batch.out")
    yield _directive("error", "logs/batch.err")


def _directive(option: str, value: str) -> str:
    one_line(value, f"--{option}={value!r}")
    return f"#flux: {quote(f'--{option}={value}' if value else f'--{option}')}"


def _once_a_node(plan: Plan, command: tuple[Argument, ...]) -> tuple[Argument, ...]:
    return (*texts("flux", "run", f"-N{plan.nodes}", f"-n{plan.nodes}"), *command) if command else ()


def _step(plan: Plan, step: StepSpec) -> Iterator[Argument]:
    if step.launcher:
        raise UsageError(
            f"{plan.runtime} takes its options from srun, and {plan.site} has {plan.scheduler}",
            where=f"--runtime {plan.runtime}",
            fix="use another runtime",
        )
    yield from texts("flux", "run", f"-N{plan.nodes}", f"-n{plan.tasks}")
    yield from texts(f"--cores-per-task={plan.cpus_per_task}", f"--gpus-per-task={plan.gpus_per_task}")
    yield from texts("--setopt=cpu-affinity=off", "--setopt=gpu-affinity=off")  # the launcher binds
    yield from (*texts("/bin/bash", "-c", _TASK, "bash"), (Var(RUN_DIRECTORY), Text("/logs")))
    yield from texts(str(plan.tasks_per_node[0]))
    yield from step.command
