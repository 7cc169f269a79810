"""The batch script for PBS Pro and OpenPBS: a function of the plan and its step alone.

It starts in the run directory, which is ``$PBS_O_WORKDIR``. The tasks are started by the MPI's own ``mpiexec``
(PALS), which knows no file for each rank: a shell in each task opens them.
"""

from __future__ import annotations

from collections.abc import Iterator

from runner.backends.schedulers import versions
from runner.backends.schedulers.pbs import settings
from runner.backends.schedulers.script_head import head
from runner.backends.schedulers.script_parts import TAIL, TRAPS, around, clock, node_log, world
from runner.core.errors import UsageError
from runner.model.plan import Plan
from runner.model.step import RUN_DIRECTORY, Argument, StepSpec, Text, Var, texts
from runner.render.pbs import directive
from runner.render.shell import folded, statement

# Options and resources that the plan itself decides, and what decides them.
_PLANNED = {
    **dict.fromkeys(("select", "place", "ncpus", "ngpus", "nodes", "mem", "mpiprocs"), "--gpus and --nodes"),
    **dict.fromkeys(("S", "r", "j", "o", "e", "k", "v", "V", "l", "C"), ""),
    "N": "--name",
    "q": "--queue",
    "A": "--account",
    "walltime": "--time",
}
# Options that would break a run, and why (qsub(1B)).
_REFUSED = {
    "J": "all jobs of an array would write into one run directory: submit once for each",
    "I": "qsub would wait for a person at a terminal: use `qsub -I` itself",
    "f": "qsub would not answer until the job's end: `submit --wait`, or `wait`",
    "z": "qsub would not say the job's number",
    "X": "a batch job has no display",
}

# Of PALS and of Hydra; of PALS alone; of Open MPI.
_RANK = "${PMI_RANK:-${PALS_RANKID:-${OMPI_COMM_WORLD_RANK:?no rank}}}"
_FILES = f'runner_logs=$1/rank-{_RANK}; shift; exec "$@" >"$runner_logs.out" 2>"$runner_logs.err"'
_NODE_FILE = f'"$@" {node_log("$(hostname)")}'


def render(plan: Plan, step: StepSpec) -> str:
    """The whole batch script.

    Raises:
        UsageError: a value that bash or qsub could not take as it is, or ranks that mpiexec cannot place so.
    """
    if not _in_blocks(plan):
        shown = ",".join(str(count) for count in plan.tasks_per_node)
        raise UsageError(
            f"mpiexec fills one node after the other: it cannot put {shown} ranks on the nodes",
            where="--nodes",
            fix="leave --nodes out, or ask for a number that divides the GPUs",
        )
    parts = [
        "#!/bin/bash",
        *_directives(plan, step),
        "set -uo pipefail",
        "umask 077",
        head(plan, "$PBS_JOBID", "$PBS_O_WORKDIR"),
        world(plan, """awk '!seen[$0]++' "$PBS_NODEFILE\""""),
        *(statement(entry) for entry in step.prelude),
        "",
        *versions.record(plan),
    ]
    parts += around(_once_a_node(plan, step.once_a_node), _once_a_node(plan, step.at_end))
    parts += [TRAPS, f"{folded(tuple(_step(plan, step)))} &", TAIL]
    return "\n".join(parts)


def _directives(plan: Plan, step: StepSpec) -> Iterator[str]:
    yield directive("N", plan.job_name)
    if plan.queue is not None:
        yield directive("q", plan.queue)
    if plan.account is not None:
        yield directive("A", plan.account)
    yield directive("select", _select(plan))
    yield directive("place", settings(plan).place)
    yield directive("walltime", clock(plan.walltime_s))
    resources = dict(sorted(settings(plan).resources.items())) | dict(plan.directives) | dict(step.directives)
    for option, value in resources.items():
        if option in _REFUSED:
            what = f"-{option} is not available: {_REFUSED[option]}"
            raise UsageError(what, where=f"--scheduler-option {option}", fix="leave it out")
        if option in _PLANNED:
            by = _PLANNED[option]
            of_the_site = option in settings(plan).resources or option in settings(plan).directives
            raise UsageError(
                f"{option} is decided by the plan",
                where=f"site {plan.site}: pbs: {option}" if of_the_site else f"--scheduler-option {option}",
                fix=f"leave it out; it follows from {by}" if by else "leave it out",
            )
        yield directive(option, value)
    yield directive("S", "/bin/bash")
    yield directive("r", "n")
    yield directive("o", "logs/batch.out")
    yield directive("e", "logs/batch.err")


def _select(plan: Plan) -> str:
    """Chunks, one a node: alike ones are counted together."""
    own = [f"{name}={value}" for name, value in sorted(settings(plan).chunk.items())]
    if settings(plan).whole_nodes:
        return ":".join((str(plan.nodes), *own))
    chunks: list[str] = []
    for tasks in dict.fromkeys(plan.tasks_per_node):
        cpus = tasks * plan.cpus_per_task
        gpus, mem = tasks * plan.gpus_per_task, cpus * plan.memory_per_cpu_mb
        words = [f"ncpus={cpus}", f"ngpus={gpus}", f"mpiprocs={tasks}", f"mem={mem}mb"]
        chunks.append(":".join((str(plan.tasks_per_node.count(tasks)), *words, *own)))
    return "+".join(chunks)


def _in_blocks(plan: Plan) -> bool:
    most = max(plan.tasks_per_node)
    full, rest = divmod(plan.tasks, most)
    return plan.tasks_per_node == (most,) * full + ((rest,) if rest else ())


def _mpiexec(plan: Plan, ranks: int, per_node: int) -> tuple[Argument, ...]:
    return (
        *texts("mpiexec", "--hostfile"),
        (Var("PBS_NODEFILE"),),
        *texts("-n", str(ranks), "--ppn", str(per_node), f"--depth={plan.cpus_per_task}"),
        *texts("--cpu-bind", settings(plan).cpu_bind),
    )


def _once_a_node(plan: Plan, command: tuple[Argument, ...]) -> tuple[Argument, ...]:
    if not command:
        return ()
    return (*_mpiexec(plan, plan.nodes, 1), *texts("/bin/bash", "-c", _NODE_FILE, "bash"), *command)


def _step(plan: Plan, step: StepSpec) -> Iterator[Argument]:
    if step.launcher:
        raise UsageError(
            f"{plan.runtime} takes its options from srun, and {plan.site} has {plan.scheduler}",
            where=f"--runtime {plan.runtime}",
            fix="use another runtime",
        )
    yield from _mpiexec(plan, plan.tasks, max(plan.tasks_per_node))
    yield from (*texts("/bin/bash", "-c", _FILES, "bash"), (Var(RUN_DIRECTORY), Text("/logs")))
    yield from step.command
