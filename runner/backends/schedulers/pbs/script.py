"""The batch script for PBS Pro and OpenPBS: a function of the plan and its step alone.

It starts in the run directory, which is ``$PBS_O_WORKDIR``; in an existing allocation (``qsub -I``) plain bash runs
it, and keeps the time limit. The tasks are started by the MPI's own ``mpiexec``
(PALS), which knows no file for each rank: a shell in each task opens them.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path

from runner.backends.schedulers import script_parts
from runner.backends.schedulers.pbs import settings
from runner.backends.schedulers.pbs.options import PLANNED, REFUSED
from runner.backends.schedulers.script_parts import COMMON, PROFILE, SUPERVISE
from runner.core.errors import UsageError
from runner.model.plan import Plan
from runner.model.step import RUN_DIRECTORY, Argument, JobScript, StepSpec, Var, library_file, text, texts
from runner.render import checked, command, job_script, pbs_directive, quoted_arguments

_OF_A_BATCH = ("-S", "-r", "-o", "-e")  # of no use to qsub -I
_OUTPUT = script_parts.SHELL / "output.sh"

_START_AGAIN = """
if [ -e nodes ]; then   # PBS starts this job again (-r y): what the start before has left is not this one's
  runner_before=$(mktemp -d start-before-XXXXXX) || exit 71
  mv -f -- ranks nccl logs nodes $(compgen -G 'exit.json*'; compgen -G 'result.json*') "$runner_before"
  mkdir ranks nccl logs
fi"""


def render(plan: Plan, step: StepSpec) -> JobScript:
    """The whole batch script. Raises UsageError: a value that bash or qsub could not take as it is, or ranks that
    mpiexec cannot place so.
    """
    most = max(plan.tasks_per_node)
    full, rest = divmod(plan.tasks, most)
    if plan.tasks_per_node != (most,) * full + ((rest,) if rest else ()):
        raise UsageError(
            "mpiexec fills one node after the other: "
            f"it cannot put {','.join(map(str, plan.tasks_per_node))} ranks on the nodes",
            where="--nodes",
            fix="leave --nodes out, or ask for a number that divides the GPUs",
        )
    if step.launcher:
        raise UsageError(
            f"{plan.runtime} takes its options from srun, and {plan.site} has {plan.scheduler}",
            where=f"--runtime {plan.runtime}",
            fix="use another runtime",
        )
    supervise = (SUPERVISE,) if plan.existing_allocation else ()
    files = (COMMON, *supervise, *((PROFILE,) if script_parts.needs_profile(plan) else ()), _OUTPUT, *step.files)
    return job_script(_lines(plan, step, files), files)


def _lines(plan: Plan, step: StepSpec, files: tuple[Path, ...]) -> Iterator[str]:
    held = plan.existing_allocation
    if held is None:
        yield from ("#!/bin/bash", *_directives(plan, step), *script_parts.begin(plan))
        yield f"runner_job=$PBS_JOBID {RUN_DIRECTORY}=$PBS_O_WORKDIR"
        yield f'runner_enter "${RUN_DIRECTORY}"'
        yield checked(files, COMMON)
        if dict(plan.directives).get("r") == "y":
            yield _START_AGAIN
    else:
        yield from ("#!/bin/bash", *script_parts.begin(plan, by_name=False), script_parts.INTO_RUN_DIRECTORY)
        yield checked(files, COMMON, SUPERVISE)
    yield from script_parts.environment(plan)
    yield f"{script_parts.unlock_memory(plan)}\n"
    if held is None:
        yield f"""runner_find_nodes {plan.nodes} < <(awk '!seen[$0]++' "$PBS_NODEFILE")   # else it ends with 73"""
    else:
        yield "runner_end_at_signals; runner_be_job"
        yield f"runner_find_nodes {plan.nodes} < <(printf '%s\\n' {quoted_arguments(texts(*held.nodes))})"
    yield 'runner_meet "${runner_hosts[0]}" "$PBS_JOBID"   # where rank 0 serves: a container has no PBS to ask\n'
    yield from script_parts.prelude(plan, step)
    each_node = (*_mpiexec(plan, plan.nodes, 1), *library_file(_OUTPUT), text("node"))
    if step.at_end:
        yield f"{script_parts.at_end(step, each_node)}{'trap runner_at_end EXIT' if held is None else ''}\n"
    yield from script_parts.once_a_node(step, each_node)
    yield from script_parts.owners(plan)
    mpiexec = (*_mpiexec(plan, plan.tasks, max(plan.tasks_per_node)), *library_file(_OUTPUT), text("rank"))
    ranks = f"{command(mpiexec, *script_parts.grouped(step))} &"
    if held is None:
        yield from (script_parts.BEFORE_RANKS, ranks, "runner_finish $!\n")
        return
    yield "# One task for each GPU. A signal or the time limit ends them; the launchers read `notices` near that."
    yield from ("exec {runner_notices}>notices", """runner_warn() { echo USR1 >&"$runner_notices"; }""")
    yield from ("set -m", ranks, "runner_children[0]=$!")
    yield from (f"runner_supervise {plan.walltime_s} 0   # seconds", "runner_exit_as_supervised\n")


def salloc(plan: Plan, step: StepSpec) -> str:
    """The command line for a shell that holds an allocation for the plan: ``qsub -I``."""
    options = (shlex.split(line.removeprefix("#PBS ")) for line in _directives(plan, step))
    return quoted_arguments(
        texts("qsub", "-I", *(word for each in options if each[0] not in _OF_A_BATCH for word in each))
    )


def _directives(plan: Plan, step: StepSpec) -> Iterator[str]:
    site = settings(plan)
    given = dict(sorted(site.resources.items())) | dict(plan.directives) | dict(step.directives)
    for option in given:
        if option in REFUSED and (option, given[option]) != ("r", "y"):
            what = f"-{option} is not available: {REFUSED[option]}"
            raise UsageError(what, where=f"--scheduler-option {option}", fix="leave it out")
        if option in PLANNED:
            by = PLANNED[option]
            of_site = option in site.resources or option in site.directives
            raise UsageError(
                f"{option} is decided by the plan",
                where=f"site {plan.site}: pbs: {option}" if of_site else f"--scheduler-option {option}",
                fix=f"leave it out; it follows from {by}" if by else "leave it out",
            )
    options = (
        ("N", plan.job_name),
        *((("q", plan.queue),) if plan.queue is not None else ()),
        *((("A", plan.account),) if plan.account is not None else ()),
        *(("select", _select(plan)), ("place", site.place), ("walltime", script_parts.clock(plan.walltime_s))),
        *given.items(),
        *(
            ("S", "/bin/bash"),
            *(() if "r" in given else (("r", "n"),)),
            ("o", "logs/batch.out"),
            ("e", "logs/batch.err"),
        ),
    )
    return (pbs_directive(option, value) for option, value in options)


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


def _mpiexec(plan: Plan, ranks: int, per_node: int) -> tuple[Argument, ...]:
    return (
        *(*texts("mpiexec", "--hostfile"), (text("nodes") if plan.existing_allocation else (Var("PBS_NODEFILE"),))),
        *texts("-n", str(ranks), "--ppn", str(per_node), f"--depth={plan.cpus_per_task}"),
        *texts("--cpu-bind", settings(plan).cpu_bind),
    )
