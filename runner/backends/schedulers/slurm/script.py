"""The Slurm batch script: a function of the plan and its step alone (no time, no run id, no random value).

It starts in the run directory, which is ``$SLURM_SUBMIT_DIR``, so what a dry run prints, what lies in the run
directory and what Slurm gets are the same bytes. In an allocation that is held already it is run by plain bash.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from runner.backends.schedulers import script_head, supervised_script, versions
from runner.backends.schedulers.script_head import head
from runner.backends.schedulers.script_parts import KEY, NODES_FILE, TAIL, TRAPS, WAIT, around, memlock, port, world
from runner.backends.schedulers.slurm import keeper, settings
from runner.backends.schedulers.slurm import options as slurm_options
from runner.model.exit_codes import NO_RUN_DIRECTORY, WRONG_NODES
from runner.model.plan import Plan
from runner.model.step import LIVE, RUN_DIRECTORY, Argument, StepSpec, Text, Var, text, texts
from runner.render.sbatch import directive
from runner.render.shell import folded, quoted_arguments, statement

_OF_A_BATCH = ("signal", "no-requeue", "export", "output", "error")  # of no use to salloc
_FIRST = ("--kill-on-bad-exit=1", "--output=logs/node-%N.log")  # %N: of the node (srun(1))

_CPUS = "runner_cpus"  # of each rank, where the script divides those of the nodes

_NODE_LIST = "runner_nodelist"  # of a launch: its nodes, with commas
_OF_ALLOCATION = ("SLURM_JOB_ID", "SLURM_CONF", "SLURM_CLUSTER_NAME")
_WITHOUT_SHAPE = f"""\
for runner_i in "${{!SLURM_@}}" "${{!SRUN_@}}" "${{!SBATCH_@}}" "${{!SQUEUE_@}}"; do
  case $runner_i in {" | ".join(_OF_ALLOCATION)}) ;; *) unset -v "$runner_i" ;; esac
done"""

_HELD_TRAPS = """\
runner_step=
trap 'runner_why=CANCELLED; kill -TERM "$runner_step" 2>/dev/null' TERM
"""


def render(plan: Plan, step: StepSpec) -> str:
    """The whole batch script.

    Raises:
        UsageError: a value that bash or sbatch could not take as it is; says which.
    """
    if plan.existing_allocation or plan.launch:
        return _in_allocation(plan, step)
    parts = [
        "#!/bin/bash",
        *directives(plan, step),
        "set -uo pipefail",
        "umask 077",
        "unset SLURM_EXPORT_ENV                         # sbatch's --export would reach srun, too",
        head(plan, "$SLURM_JOB_ID", "$SLURM_SUBMIT_DIR"),
        world(plan, 'scontrol show hostnames "$SLURM_JOB_NODELIST"'),
        *_divided_cpus(plan),
        *(statement(entry) for entry in step.prelude),
        "",
        *versions.record(plan),
    ]
    parts += [f"{keeper.AT_END}trap runner_at_end EXIT\n"] if step.at_end else []
    parts += _ready(plan, step)
    if _uneven(plan):
        parts.append(_hostfile(plan))
    parts += [TRAPS, f"{folded(tuple(_step(plan, step)))} &", TAIL]
    return "\n".join(parts)


def salloc(plan: Plan, step: StepSpec) -> str:
    """The command line for a shell that holds an allocation for the plan."""
    left_out = tuple(f"#SBATCH --{option}" for option in _OF_A_BATCH)
    shaping = (line.removeprefix("#SBATCH ") for line in directives(plan, step) if not line.startswith(left_out))
    # sbatch's quotes and backslashes, as `directive` writes them, are read by the shell's rules.
    return quoted_arguments(texts("salloc", *(word for option in shaping for word in shlex.split(option))))


def _in_allocation(plan: Plan, step: StepSpec) -> str:
    """The script of a step: whatever else Slurm, salloc and a login shell have set must not shape it."""
    parts = [
        "#!/bin/bash",
        *_beginning(plan),
        supervised_script.into_run_directory(NO_RUN_DIRECTORY),
        supervised_script.OWN_JOB_ID,
        *((keeper.AT_END,) if step.at_end else ()),
        supervised_script.marker("runner_at_end" if step.at_end else ""),
        *_nodes(plan),
        NODES_FILE,
        'export RUNNER_RDV_HOST="${runner_hosts[0]}"',
        f"export {port('SLURM_JOB_ID')}",
        KEY,
        *(statement(entry) for entry in step.prelude),
        "",
        *versions.record(plan),
        *_ready(plan, step),
    ]
    if _uneven(plan):
        parts.append(_hostfile(plan))
    parts += [_HELD_TRAPS, f"{folded(tuple(_step(plan, step)))} &", f'{WAIT}exit "$runner_exit"\n']
    return "\n".join(parts)


def _beginning(plan: Plan) -> Iterator[str]:
    """The first lines: of a launch the clean environment of a job's own batch script, of another step less."""
    if plan.launch is not None:
        yield "# A launch of a study. The script of the study's allocation runs it: job.sh CPUS-OF-A-NODE NODE..."
    yield "set -uo pipefail"
    yield "umask 077"
    if plan.launch is None:
        yield supervised_script.only(*_OF_ALLOCATION)
    else:
        yield script_head.environment(plan)
        yield _WITHOUT_SHAPE
    yield 'export USER="${USER:-$(id -un)}"'
    yield memlock(plan)


def _nodes(plan: Plan) -> Iterator[str]:
    if plan.existing_allocation is not None:
        yield f"runner_hosts=({quoted_arguments(texts(*plan.existing_allocation.nodes))})"
        return
    threads = "${1:-0} / " + str(max(plan.tasks_per_node))
    yield f"""\
runner_hosts=("${{@:2}}") {_NODE_LIST}=$(IFS=,; printf %s "${{*:2}}")
[ "${{#runner_hosts[@]}}" -eq {plan.nodes} ] || {{
  echo "planned {plan.nodes} nodes, got ${{#runner_hosts[@]}}" >&2; exit {WRONG_NODES}; }}
{_CPUS}=$(( {threads} ))   # all CPUs of its nodes, at every size: each rank binds itself to its GPU's share
[ "${_CPUS}" -lt 2 ] || {_CPUS}=$(( {_CPUS} / 2 * 2 ))   # whole cores"""


def _ready(plan: Plan, step: StepSpec) -> Iterator[str]:
    """What comes before the ranks: once a node, and for as long as the job where something is to be cleaned up."""
    if any(Var(LIVE) in argument for argument in step.once_a_node):
        yield keeper.ASK_FOR_LIVE
    if not step.at_end:
        yield from around(_once_a_node(plan, step.once_a_node, *_FIRST), ())
        return
    # Of a held allocation the keeper, too, gets what it needs and no more.
    options = (*(("--exact",) if plan.existing_allocation or plan.launch else ()), *keeper.OPTIONS)
    kept = keeper.command(step.once_a_node, step.at_end)
    shape = texts(f"--nodes={plan.nodes}", f"--ntasks={plan.nodes}", "--ntasks-per-node=1", *options)
    yield keeper.start((*_srun(plan), *_on_nodes(plan), *shape, *kept))


def _of_held(plan: Plan) -> tuple[Argument, ...]:
    """Of a held allocation a step gets what it needs and no more, and shares with the step that it was asked from."""
    if plan.existing_allocation is None:
        return texts("--exact") if plan.launch else ()
    return texts("--exact", *(("--overlap",) if plan.existing_allocation.overlap else ()))


def _on_nodes(plan: Plan) -> tuple[Argument, ...]:
    """Of a held allocation the nodes are chosen, and the first of them is where rank 0 serves."""
    if plan.launch is not None:
        return ((Text("--nodelist="), Var(_NODE_LIST)),)
    return texts(f"--nodelist={','.join(plan.existing_allocation.nodes)}") if plan.existing_allocation else ()


def directives(plan: Plan, step: StepSpec) -> Iterator[str]:
    yield directive("job-name", plan.job_name)
    if plan.queue is not None:
        yield directive(settings(plan).queue_option, plan.queue)
    if plan.account is not None:
        yield directive("account", plan.account)
    yield directive("nodes", str(plan.nodes))
    yield from _tasks(plan)
    yield _gpus(plan)
    if not plan.divides_cpus:
        yield directive("cpus-per-task", str(plan.cpus_per_task))
    yield from _memory(plan)
    if plan.whole_nodes and settings(plan).exclusive and "exclusive" not in dict(plan.directives):
        yield directive("exclusive")
    for option, value in plan.directives:
        slurm_options.refuse(option, plan)
        yield directive(option, value or None)
    for option, value in step.directives:
        yield directive(option, value)
    yield directive("time", _clock(plan.walltime_s))
    if plan.walltime_s >= 5:
        yield directive("signal", f"B:USR1@{min(120, plan.walltime_s // 5)}")
    yield directive("no-requeue")
    yield directive("export", settings(plan).export.upper())
    yield directive("output", "logs/batch.out")
    yield directive("error", "logs/batch.err")


def _tasks(plan: Plan) -> Iterator[str]:
    most = max(plan.tasks_per_node)
    if settings(plan).tasks == "per-node":
        yield directive("ntasks-per-node", str(most))
    else:
        yield directive("ntasks", str(plan.tasks))
        yield directive("mincpus", str(most * plan.cpus_per_task))


def _gpus(plan: Plan) -> str:
    typed = f"{plan.gpu_type}:" if plan.gpu_type else ""
    if settings(plan).gpus == "gres":
        return directive("gres", f"gpu:{typed}{plan.gpus_per_node}")
    if settings(plan).gpus == "total" and not _uneven(plan):  # Slurm would spread an uneven total as it likes
        return directive("gpus", f"{typed}{plan.gpus}")
    return directive("gpus-per-node", f"{typed}{plan.gpus_per_node}")


def _divided_cpus(plan: Plan) -> Iterator[str]:
    """A rank's share of the node that has the fewest CPUs: ``256(x2)``, ``128,256``."""
    if plan.divides_cpus:
        yield f"""\
{_CPUS}=$(tr , '\\n' <<<"$SLURM_JOB_CPUS_PER_NODE" | sort -n | head -n 1)   # hardware threads, where they are on
{_CPUS}=$(( ${{{_CPUS}%%[!0-9]*}} / {max(plan.tasks_per_node)} ))"""


def _memory(plan: Plan) -> Iterator[str]:
    if slurm_options.memory(plan):
        return
    if settings(plan).memory == "per-node":
        yield directive("mem", f"{plan.memory_mb}M" if plan.memory_mb else "0")
    elif settings(plan).memory == "per-cpu":
        yield directive("mem-per-cpu", f"{plan.memory_per_cpu_mb}M")


def _once_a_node(plan: Plan, command: tuple[Argument, ...], *options: str) -> tuple[Argument, ...]:
    shape = texts(f"--nodes={plan.nodes}", f"--ntasks={plan.nodes}", "--ntasks-per-node=1", *options)
    return (*_srun(plan), *_of_held(plan), *_on_nodes(plan), *shape, *command) if command else ()


def _hostfile(plan: Plan) -> str:
    """The node of every rank of an uneven split: without it Slurm fills nodes as it likes (14 and 2, measured)."""
    counts = " ".join(str(count) for count in plan.tasks_per_node)
    return f"""\
runner_counts=({counts})
for runner_i in "${{!runner_hosts[@]}}"; do
  for (( runner_n = 0; runner_n < runner_counts[runner_i]; runner_n++ )); do
    printf '%s\\n' "${{runner_hosts[runner_i]}}"
  done
done >hosts
export SLURM_HOSTFILE="${RUN_DIRECTORY}/hosts"
unset SLURM_NTASKS_PER_NODE   # srun would warn that it cannot honour both
"""


def _srun(plan: Plan) -> tuple[Argument, ...]:
    return texts("srun", *(() if plan.mpi is None else (f"--mpi={plan.mpi}",)))


def _step(plan: Plan, step: StepSpec) -> Iterator[Argument]:
    yield from _srun(plan)
    if not _uneven(plan):
        yield text(f"--nodes={plan.nodes}")
    yield text(f"--ntasks={plan.tasks}")
    yield from _of_held(plan)
    if _uneven(plan):
        yield text("--distribution=arbitrary")  # beside which srun takes no --nodes (24.11)
    else:
        yield from _on_nodes(plan)
        yield text(f"--ntasks-per-node={plan.tasks_per_node[0]}")
    if plan.existing_allocation:
        # Untyped: Slurm finds no typed GPU in an allocation that was asked for without a type (22.05).
        yield from texts(f"--gpus-per-node={plan.gpus_per_node}", f"--time={_clock(plan.walltime_s)}")
    if plan.launch:
        yield from texts(f"--gpus-per-node={plan.launch.node_gpus}", "--mem=0", f"--time={_clock(plan.walltime_s)}")
    divided = plan.divides_cpus or plan.launch
    yield (Text("--cpus-per-task="), Var(_CPUS) if divided else Text(str(plan.cpus_per_task)))
    if plan.whole_nodes or plan.launch:
        yield text("--cpu-bind=none")  # the launcher binds, from the node's own sysfs
    yield from (text(f"--{option}={value}") for option, value in sorted(settings(plan).step.items()))
    yield from texts("--kill-on-bad-exit=1", f"--wait={0 if plan.launch else plan.wait_s}")
    yield from texts("--output=logs/rank-%t.out", "--error=logs/rank-%t.err")
    yield from step.launcher
    yield from step.command


def _uneven(plan: Plan) -> bool:
    return len(set(plan.tasks_per_node)) > 1


def _clock(seconds: int) -> str:
    """Slurm's ``[days-]hours:minutes:seconds``."""
    days, rest = divmod(seconds, 86400)
    hours, rest = divmod(rest, 3600)
    clock = f"{hours:02d}:{rest // 60:02d}:{rest % 60:02d}"
    return f"{days}-{clock}" if days else clock
