"""Options of sbatch that are refused, and why: the plan decides them, or they would break a run.

Everything else goes through as it is: dependency, reservation, nodelist, exclude, constraint, licenses, mail, begin,
deadline, nice, qos, comment, exclusive (sbatch(1), Slurm 22.05 to 26.05).
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

from runner.backends.schedulers.script_parts import (
    BEFORE_RANKS,
    COMMON,
    INTO_RUN_DIRECTORY,
    PROFILE,
    SHELL,
    STRICT,
    SUPERVISE,
    environment,
    grouped,
    needs_profile,
    once_a_node,
    unlock_memory,
    versions,
)
from runner.backends.schedulers.slurm import MEMORY, settings
from runner.core.errors import UsageError
from runner.model.exit_codes import NO_RUN_DIRECTORY
from runner.model.plan import Plan
from runner.model.step import LIVE, RUN_DIRECTORY, Argument, JobScript, StepSpec, Text, Var, library_file, text, texts
from runner.render import checked, command, job_script, quoted_arguments, sbatch_directive, statement

# Option -> what it follows from.
_PLANNED = {
    **dict.fromkeys(("nodes", "ntasks", "ntasks-per-node", "mincpus"), "--gpus and --nodes"),
    **dict.fromkeys(("ntasks-per-core", "ntasks-per-socket", "ntasks-per-gpu", "overcommit"), "--gpus and --nodes"),
    **dict.fromkeys(("sockets-per-node", "cores-per-socket", "extra-node-info", "spread-job"), "--gpus and --nodes"),
    **dict.fromkeys(("gpus", "gpus-per-node", "gres"), "--gpus and --gpu-type"),
    "job-name": "--name",
    "partition": "--queue",
    "account": "--account",
    "cpus-per-task": "--cpus-per-gpu",
    "cpus-per-gpu": "--cpus-per-gpu",
    "time": "--time",
    "image": "--image",
    "module": "the site's ways",
}
_HIDES = "each rank would see its own GPU only, and ranks pin themselves by local rank"
_IN_CONTAINER = "the batch script itself would run in the container, where there is no srun: use --runtime and --image"
_FILES = "a run keeps its script's output below logs/"
_REFUSED = {
    "array": "all its jobs would write into one run directory: submit once for each",
    "requeue": "a second start would find the records of the first: submit again",
    **dict.fromkeys(("gpus-per-task", "gpus-per-socket", "gpu-bind", "tres-bind", "tres-per-task"), _HIDES),
    **dict.fromkeys(("output", "error", "input", "open-mode"), _FILES),
    "chdir": "the script starts in the run directory: see --runs",
    "wrap": "the runner writes the script",
    **dict.fromkeys(
        ("export", "export-file", "get-user-env"),
        "nothing of a login shell reaches a job: use --env, or slurm.export of a site file",
    ),
    "signal": "the script forwards signals to the ranks, and asks for one near the time limit itself",
    "no-requeue": "every script has it",
    "distribution": "the plan says which rank is on which node",
    "clusters": "states and logs come from the cluster that this host belongs to: submit from a host of the other one",
    "wait": "sbatch would not return until the job ends: `submit --wait`, or `wait` (-S wait=SECONDS is srun's option)",
    **dict.fromkeys(("test-only", "help", "usage", "version"), "sbatch would submit nothing: use --dry-run"),
    **dict.fromkeys(("parsable", "quiet", "verbose"), "the runner reads sbatch's output"),
    **dict.fromkeys(("uid", "gid"), "a run belongs to the user who submits it"),
    "container": _IN_CONTAINER,
}

_SIZE = re.compile(r"[0-9]{1,12}[KMGT]?\Z", re.ASCII | re.IGNORECASE)


def memory_option(plan: Plan) -> str:
    """The option of memory that the site or the job gives; empty where the plan decides.

    Raises:
        UsageError: sbatch would not take it; says why.
    """
    given = {option: value for option, value in plan.directives if option in MEMORY}
    where = "--scheduler-option, or slurm.directives of the site"
    if len(given) > 1:
        raise UsageError(f"--{' and --'.join(given)} exclude each other", where=where, fix="give one of them")
    for option, value in given.items():
        if not _SIZE.match(value):
            what = f"--{option}={value!r} is no size of memory"
            raise UsageError(what, where=where, fix=f"-S {option}=100G; -S mem=0 is all memory of each node")
    return next(iter(given), "")


def refuse_option(option: str, plan: Plan) -> None:
    """Nothing where the option may go to sbatch.

    Raises:
        UsageError: it may not; says why, and what to use instead.
    """
    if option not in MEMORY and any(name.startswith(option) for name in MEMORY):
        raise UsageError(
            f"--{option} is short for more than one", where="directives", fix=f"one of {', '.join(MEMORY)}"
        )
    # getopt_long(3) takes the beginning of a name for the name.
    name = option if option in _PLANNED or option in _REFUSED else _abbreviated(option)
    if option == settings(plan).queue_option:
        name = "partition"
    elif option.startswith(("container-", "no-container-")):  # Pyxis's
        name = "container"
    if not name:
        return
    of_the_site = option in settings(plan).directives
    where = f"site {plan.site}: slurm.directives.{option}" if of_the_site else f"--scheduler-option {option}"
    value = dict(plan.directives)[option]
    if option == "wait" and value:
        what = f"--wait={value!r} of srun is no number of seconds"
        raise UsageError(what, where=where, fix="-S wait=600; -S wait=0 lets the other ranks run as long as they need")
    if name in _PLANNED:
        by = _PLANNED[name]
        raise UsageError(f"--{option} is decided by the plan", where=where, fix=f"leave it out; it follows from {by}")
    raise UsageError(f"--{option} is not available: {_REFUSED[name]}", where=where, fix="leave it out")


def _abbreviated(option: str) -> str:
    """The first of these options whose name begins so; empty where none does."""
    return next((name for name in (*_REFUSED, *_PLANNED) if name.startswith(option)), "")


SLURM, _KEEPER = SHELL / "slurm.sh", SHELL / "keeper.sh"
_OF_A_BATCH = ("signal", "no-requeue", "export", "output", "error")  # of no use to salloc
_FIRST = ("--kill-on-bad-exit=1", "--output=logs/node-%N.log")  # %N: of the node (srun(1))
# A keeper is beside the ranks, with all that the job has; the end of one is not the end of the others.
_KEPT = ("--overlap", "--kill-on-bad-exit=0", "--wait=0")

_CPUS = "runner_cpus"  # of each rank, where the script divides those of the nodes
_NODE_LIST = "runner_nodelist"  # of a launch: its nodes, with commas
_OF_ALLOCATION = ("SLURM_JOB_ID", "SLURM_CONF", "SLURM_CLUSTER_NAME")


def render(plan: Plan, step: StepSpec) -> JobScript:
    """The whole batch script.

    Raises:
        UsageError: a value that bash or sbatch could not take as it is; says which.
    """
    in_allocation = plan.existing_allocation is not None or plan.launch is not None
    files = (
        *(COMMON, SLURM),
        *((SUPERVISE,) if in_allocation else ()),
        *((PROFILE,) if plan.existing_allocation is None and needs_profile(plan) else ()),
        *((_KEEPER,) if step.at_end else ()),
        *step.files,
    )
    parts = _in_allocation(plan, step, files) if in_allocation else _batch(plan, step, files)
    return job_script(parts, files)


def _batch(plan: Plan, step: StepSpec, files: tuple[Path, ...]) -> Iterator[str]:
    yield "#!/bin/bash"
    yield from directives(plan, step)
    yield STRICT
    yield f"runner_job=$SLURM_JOB_ID {RUN_DIRECTORY}=$SLURM_SUBMIT_DIR"
    yield f'cd -- "${RUN_DIRECTORY}" || exit {NO_RUN_DIRECTORY}'
    yield checked(files, COMMON, SLURM)
    yield from environment(plan)
    yield f"{unlock_memory(plan)}\n"
    yield find_nodes(plan)
    yield 'runner_meet "${runner_hosts[0]}" "$runner_job"   # where rank 0 serves: a container has no Slurm to ask'
    if plan.divides_cpus:
        yield f"{_CPUS}=$(( $(runner_fewest_cpus) / {max(plan.tasks_per_node)} ))   # of each rank"
    yield ""
    yield from (statement(entry) for entry in step.prelude)
    yield from versions(plan)
    yield ""
    if step.at_end:
        yield "trap runner_at_end EXIT"
    yield from _ready(plan, step)
    yield BEFORE_RANKS
    yield f"{_step(plan, step)} &"
    yield "runner_finish $!\n"


def find_nodes(plan: Plan) -> str:
    """The line that reads the job's nodes."""
    return f'runner_find_nodes {plan.nodes} < <(scontrol show hostnames "$SLURM_JOB_NODELIST")   # else it ends with 73'


def salloc(plan: Plan, step: StepSpec) -> str:
    """The command line for a shell that holds an allocation for the plan."""
    left_out = tuple(f"#SBATCH --{option}" for option in _OF_A_BATCH)
    shaping = (line.removeprefix("#SBATCH ") for line in directives(plan, step) if not line.startswith(left_out))
    # sbatch's quotes and backslashes, as `directive` writes them, are read by the shell's rules.
    return quoted_arguments(texts("salloc", *(word for option in shaping for word in shlex.split(option))))


def _in_allocation(plan: Plan, step: StepSpec, files: tuple[Path, ...]) -> Iterator[str]:
    """The script of a step: whatever else Slurm, salloc and a login shell have set must not shape it."""
    yield "#!/bin/bash"
    if plan.launch is not None:
        yield "# A launch of a study. The script of the study's allocation runs it: job.sh CPUS-OF-A-NODE NODE..."
    yield STRICT
    yield INTO_RUN_DIRECTORY
    yield checked(files, COMMON, SLURM, SUPERVISE)
    if plan.launch is None:
        yield f"runner_keep_only {' '.join(_OF_ALLOCATION)}"
    else:
        yield from environment(plan)
        yield "runner_unset_shape"
    yield f"{unlock_memory(plan)}\n"
    yield "runner_be_job"
    yield from _nodes(plan)
    yield 'runner_meet "${runner_hosts[0]}" "$SLURM_JOB_ID"   # where rank 0 serves: a container has no Slurm to ask\n'
    yield from (statement(entry) for entry in step.prelude)
    yield from versions(plan)
    yield ""
    yield from _ready(plan, step)
    yield "# One task for each GPU."
    yield "runner_step=''"
    yield "trap 'runner_why=CANCELLED; kill -TERM \"$runner_step\" 2>/dev/null' TERM"
    yield f"{_step(plan, step)} &"
    yield 'runner_wait $!; exit "$runner_exit"\n'


def _nodes(plan: Plan) -> Iterator[str]:
    if plan.existing_allocation is not None:
        names = quoted_arguments(texts(*plan.existing_allocation.nodes))
        yield f"runner_find_nodes {plan.nodes} < <(printf '%s\\n' {names})"
        return
    yield f"runner_find_nodes {plan.nodes} < <(printf '%s\\n' \"${{@:2}}\")   # else it ends with 73"
    yield f'{_NODE_LIST}=$(IFS=,; printf %s "${{*:2}}")'
    yield "# All CPUs of its nodes, at every size, in whole cores: each rank binds itself to its GPU's share."
    yield f"{_CPUS}=$(( ${{1:-0}} / {max(plan.tasks_per_node)} ))"
    yield f'[ "${_CPUS}" -lt 2 ] || {_CPUS}=$(( {_CPUS} / 2 * 2 ))'


def _ready(plan: Plan, step: StepSpec) -> Iterator[str]:
    """What comes before the ranks: once a node, and for as long as the job where something is to be cleaned up."""
    if any(Var(LIVE) in argument for argument in step.once_a_node):
        yield "runner_ask_for_live   # jobs of yours that Slurm knows; what others have left on a node may go"
    if step.at_end:
        # Of a held allocation the keeper, too, gets what it needs and no more.
        options = (*(("--exact",) if plan.existing_allocation or plan.launch else ()), *_KEPT)
        kept = (*library_file(_KEEPER), text(str(len(step.once_a_node))), *step.once_a_node)
        srun = command((*_srun(plan), *_on_nodes(plan), *_shape(plan, *options)), kept, step.at_end, indent="  ")
        yield f"# On each node, beside the ranks: {step.does}; cleans up when this script ends."
        yield f"coproc RUNNER_KEEPER {{\n  exec {srun}\n}}\nrunner_until_ready\n"
    else:
        yield from once_a_node(step, (*_srun(plan), *_of_held(plan), *_on_nodes(plan), *_shape(plan, *_FIRST)))
    if _uneven(plan):
        yield f"runner_place_ranks {' '.join(map(str, plan.tasks_per_node))}   # on each node\n"


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
    yield sbatch_directive("job-name", plan.job_name)
    if plan.queue is not None:
        yield sbatch_directive(settings(plan).queue_option, plan.queue)
    if plan.account is not None:
        yield sbatch_directive("account", plan.account)
    yield sbatch_directive("nodes", str(plan.nodes))
    yield from _tasks(plan)
    yield _gpus(plan)
    if not plan.divides_cpus:
        yield sbatch_directive("cpus-per-task", str(plan.cpus_per_task))
    yield from _memory(plan)
    if plan.whole_nodes and settings(plan).exclusive and "exclusive" not in dict(plan.directives):
        yield sbatch_directive("exclusive")
    for option, value in plan.directives:
        refuse_option(option, plan)
        yield sbatch_directive(option, value or None)
    for option, value in step.directives:
        yield sbatch_directive(option, value)
    yield sbatch_directive("time", _clock(plan.walltime_s))
    if plan.walltime_s >= 5:
        yield sbatch_directive("signal", f"B:USR1@{min(120, plan.walltime_s // 5)}")
    yield sbatch_directive("no-requeue")
    yield sbatch_directive("export", settings(plan).export.upper())
    yield sbatch_directive("output", "logs/batch.out")
    yield sbatch_directive("error", "logs/batch.err")


def _tasks(plan: Plan) -> Iterator[str]:
    most = max(plan.tasks_per_node)
    if settings(plan).tasks == "per-node":
        yield sbatch_directive("ntasks-per-node", str(most))
    else:
        yield sbatch_directive("ntasks", str(plan.tasks))
        yield sbatch_directive("mincpus", str(most * plan.cpus_per_task))


def _gpus(plan: Plan) -> str:
    typed = f"{plan.gpu_type}:" if plan.gpu_type else ""
    if settings(plan).gpus == "gres":
        return sbatch_directive("gres", f"gpu:{typed}{plan.gpus_per_node}")
    if settings(plan).gpus == "total" and not _uneven(plan):  # Slurm would spread an uneven total as it likes
        return sbatch_directive("gpus", f"{typed}{plan.gpus}")
    return sbatch_directive("gpus-per-node", f"{typed}{plan.gpus_per_node}")


def _memory(plan: Plan) -> Iterator[str]:
    if memory_option(plan):
        return
    if settings(plan).memory == "per-node":
        yield sbatch_directive("mem", f"{plan.memory_mb}M" if plan.memory_mb else "0")
    elif settings(plan).memory == "per-cpu":
        yield sbatch_directive("mem-per-cpu", f"{plan.memory_per_cpu_mb}M")


def _shape(plan: Plan, *options: str) -> tuple[Argument, ...]:
    return texts(f"--nodes={plan.nodes}", f"--ntasks={plan.nodes}", "--ntasks-per-node=1", *options)


def _srun(plan: Plan) -> tuple[Argument, ...]:
    return texts("srun", *(() if plan.mpi is None else (f"--mpi={plan.mpi}",)))


def _step(plan: Plan, step: StepSpec) -> str:
    return command(tuple(_options(plan)), *grouped(step))


def _options(plan: Plan) -> Iterator[Argument]:
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


def _uneven(plan: Plan) -> bool:
    return len(set(plan.tasks_per_node)) > 1


def _clock(seconds: int) -> str:
    """Slurm's ``[days-]hours:minutes:seconds``."""
    days, rest = divmod(seconds, 86400)
    hours, rest = divmod(rest, 3600)
    clock = f"{hours:02d}:{rest // 60:02d}:{rest % 60:02d}"
    return f"{days}-{clock}" if days else clock
