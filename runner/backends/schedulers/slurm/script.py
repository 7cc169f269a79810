"""The Slurm batch script: a function of the plan and its step alone (no time, no run id, no random value).

It starts in the run directory, which is ``$SLURM_SUBMIT_DIR``, so what a dry run prints, what lies in the run
directory and what Slurm gets are the same bytes. In an existing allocation it is run by plain bash.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator
from pathlib import Path

from runner.backends.schedulers import script_parts
from runner.backends.schedulers.script_parts import COMMON, LAUNCHES, PROFILE, SHELL, SUPERVISE
from runner.backends.schedulers.slurm import MEMORY, settings
from runner.backends.schedulers.slurm.options import PLANNED, REFUSED
from runner.core.errors import UsageError
from runner.model.exit_codes import NO_RUN_DIRECTORY, SCRIPT_IN_CONTAINER
from runner.model.job import ListedLaunch
from runner.model.plan import Plan
from runner.model.step import (
    JOB_ID,
    LIVE,
    RUN_DIRECTORY,
    Argument,
    JobScript,
    StepSpec,
    Text,
    Var,
    library_file,
    text,
    texts,
)  # fmt: skip
from runner.render import checked, command, job_script, quoted_arguments, sbatch_directive

_SIZE = re.compile(r"[0-9]{1,12}[KMGT]?\Z", re.ASCII | re.IGNORECASE)

SLURM, _KEEPER, _LAUNCHES = SHELL / "slurm.sh", SHELL / "keeper.sh", SHELL / "slurm-launches.sh"
_CHAIN = SHELL / "chain.sh"
_OF_A_BATCH = ("signal", "no-requeue", "export", "output", "error")  # of no use to salloc
_FIRST = ("--kill-on-bad-exit=1", "--output=logs/node-%N.log")  # %N: of the node (srun(1))
# A keeper is beside the ranks, with all that the job has; the end of one is not the end of the others.
_KEPT = ("--overlap", "--kill-on-bad-exit=0", "--wait=0")

_CPUS = "runner_cpus"  # of each rank, where the script divides those of the nodes
_NODE_LIST = "runner_nodelist"  # of a launch: its nodes, with commas
_OF_ALLOCATION = ("SLURM_JOB_ID", "SLURM_CONF", "SLURM_CLUSTER_NAME")


def render(plan: Plan, step: StepSpec) -> JobScript:
    """The whole batch script. Raises UsageError: a value that bash or sbatch could not take as it is; says which."""
    in_allocation = plan.existing_allocation is not None or plan.launch is not None
    files = (
        *(COMMON, SLURM),
        *((SUPERVISE,) if in_allocation else ()),
        *((_CHAIN,) if plan.attempt else ()),
        *((PROFILE,) if plan.existing_allocation is None and script_parts.needs_profile(plan) else ()),
        *((_KEEPER,) if step.at_end else ()),
        *step.files,
    )
    return job_script((_in_allocation if in_allocation else _batch)(plan, step, files), files)


def _batch(plan: Plan, step: StepSpec, files: tuple[Path, ...]) -> Iterator[str]:
    yield from ("#!/bin/bash", *_directives(plan, step), *script_parts.begin(plan))
    yield f"runner_job=$SLURM_JOB_ID {RUN_DIRECTORY}=$SLURM_SUBMIT_DIR"
    yield f'[ -z "${{PYXIS_CONTAINER_IMAGE-}}" ] || cd -- "${RUN_DIRECTORY}" || exit {SCRIPT_IN_CONTAINER}'
    yield f'runner_enter "${RUN_DIRECTORY}"'
    yield checked(files, COMMON, SLURM, *((_CHAIN,) if plan.attempt else ()))
    yield from script_parts.environment(plan)
    yield f"{script_parts.unlock_memory(plan)}\n"
    if plan.attempt:
        yield "# Queues the next attempt, to begin when this one has ended; it leaves the queue if the work is done."
        yield f"runner_begin_attempt {plan.attempt} {plan.attempts}   # of"
    yield _find_nodes(plan)
    yield 'runner_meet "${runner_hosts[0]}" "$runner_job"   # where rank 0 serves: a container has no Slurm to ask'
    if plan.divides_cpus:
        yield f"{_CPUS}=$(( $(runner_fewest_cpus) / {max(plan.tasks_per_node)} ))   # of each rank"
    yield ""
    yield from script_parts.prelude(plan, step)
    ends = [f"runner_end_attempt {plan.attempt}"] * bool(plan.attempt) + ["runner_at_end"] * bool(step.at_end)
    if ends:
        yield f"trap {quoted_arguments(texts('; '.join(ends)))} EXIT"
    yield from _ready(plan, step)
    yield script_parts.BEFORE_RANKS
    yield f"{_srun_of_ranks(plan, step)} &"
    yield "runner_finish $!\n"


def _find_nodes(plan: Plan) -> str:
    return f'runner_find_nodes {plan.nodes} < <(scontrol show hostnames "$SLURM_JOB_NODELIST")   # else it ends with 73'


def _in_allocation(plan: Plan, step: StepSpec, files: tuple[Path, ...]) -> Iterator[str]:
    """The script of a step: whatever else Slurm, salloc and a login shell have set must not shape it."""
    yield "#!/bin/bash"
    if plan.launch is not None:
        yield "# A launch of a study. The script of the study's allocation runs it: job.sh CPUS-OF-A-NODE NODE..."
    yield from (
        *script_parts.begin(plan, by_name=False),
        script_parts.INTO_RUN_DIRECTORY,
        checked(files, COMMON, SLURM, SUPERVISE),
    )
    if plan.launch is None:
        yield f"runner_keep_only {' '.join(_OF_ALLOCATION)}"
    else:
        yield from script_parts.environment(plan)
        yield "runner_unset_shape"
    yield f"{script_parts.unlock_memory(plan)}\n"
    yield "runner_be_job"
    if plan.existing_allocation is not None:
        names = quoted_arguments(texts(*plan.existing_allocation.nodes))
        yield f"runner_find_nodes {plan.nodes} < <(printf '%s\\n' {names})"
    else:
        yield f"runner_find_nodes {plan.nodes} < <(printf '%s\\n' \"${{@:2}}\")   # else it ends with 73"
        yield f'{_NODE_LIST}=$(IFS=,; printf %s "${{*:2}}")'
        yield "# All CPUs of its nodes, at every size, in whole cores: each rank binds itself to its GPU's share."
        yield f"{_CPUS}=$(( ${{1:-0}} / {max(plan.tasks_per_node)} ))"
        yield f'[ "${_CPUS}" -lt 2 ] || {_CPUS}=$(( {_CPUS} / 2 * 2 ))'
    yield 'runner_meet "${runner_hosts[0]}" "$SLURM_JOB_ID"   # where rank 0 serves: a container has no Slurm to ask\n'
    yield from script_parts.prelude(plan, step)
    yield from _ready(plan, step)
    yield "# One task for each GPU."
    yield "runner_step=''"
    yield "trap 'runner_why=CANCELLED; kill -TERM \"$runner_step\" 2>/dev/null' TERM"
    yield f"{_srun_of_ranks(plan, step)} &"
    yield 'runner_wait $!; exit "$runner_exit"\n'


def render_launches(plan: Plan, step: StepSpec, launches: Iterable[ListedLaunch]) -> JobScript:
    """The batch script of a study's one allocation: it runs the launches' own scripts, as ``launches.sh`` says.

    Args:
        plan: of a job as large as the largest launch, whose time limit is that of all of them together.

    Raises:
        UsageError: a value that bash or sbatch could not take as it is; says which.
    """
    files = (COMMON, SLURM, SUPERVISE, LAUNCHES, _LAUNCHES)
    lines = (
        *("#!/bin/bash", *_directives(plan, step)),
        "# The launches of a study, one after another, each with all that this job has of its nodes.",
        *script_parts.begin(plan),
        f"{JOB_ID}=$SLURM_JOB_ID",
        'runner_enter "$SLURM_SUBMIT_DIR"',
        checked(files, *files),
        'unset -v "${!SQUEUE_@}" "${!SCONTROL_@}"',
        "trap runner_mark EXIT\n",
        _find_nodes(plan),
        "runner_order_nodes   # those of one switch side by side",
        "runner_cpus=$(runner_fewest_cpus)",
        f"runner_limit={plan.walltime_s}   # seconds",
        "runner_expect_launches\n",
        "# Run directory; seconds that must be left; CPUs of a node; its nodes.",
        *map(launch_on_nodes, launches),
        "runner_end_launches\n",
    )
    return job_script(lines, files)


def render_array(plan: Plan, step: StepSpec, tasks: int, at_once: int | None) -> JobScript:
    """The batch script of an array: see ``runner.backends.schedulers``. A task starts as if sbatch had been called in
    its run directory, with the path by which the submitting machine knows it.
    """
    numbers = f"1-{tasks}{'' if at_once is None else f'%{at_once}'}"
    lines = (
        "#!/bin/bash",
        *_directives(plan, step, logs="%a/logs"),
        sbatch_directive("array", numbers),
        *script_parts.begin(plan),
        "# The runs of a sweep: each link here, named by its task's number, leads to a run directory.",
        'runner_enter "$SLURM_SUBMIT_DIR"',
        f'SLURM_SUBMIT_DIR=$(readlink -- "$SLURM_ARRAY_TASK_ID") || exit {NO_RUN_DIRECTORY}',
        'runner_enter "$SLURM_SUBMIT_DIR"',
        "export SLURM_SUBMIT_DIR; exec /bin/bash ./job.sh\n",
    )
    return job_script(lines, ())


def launch_on_nodes(launch: ListedLaunch) -> str:
    """The line that runs a launch on its nodes of an allocation."""
    nodes = f'"${{runner_nodes[@]:{launch.first_node}:{launch.nodes}}}"'
    return f'{script_parts.launch_line(launch)} "$runner_cpus" {nodes}'


def salloc(plan: Plan, step: StepSpec) -> str:
    """The command line for a shell that holds an allocation for the plan."""
    left_out = tuple(f"#SBATCH --{option}" for option in _OF_A_BATCH)
    shaping = (line.removeprefix("#SBATCH ") for line in _directives(plan, step) if not line.startswith(left_out))
    # sbatch's quotes and backslashes, as `sbatch_directive` writes them, are read by the shell's rules.
    return quoted_arguments(texts("salloc", *(word for option in shaping for word in shlex.split(option))))


def _ready(plan: Plan, step: StepSpec) -> Iterator[str]:
    """What comes before the ranks: once a node, and for as long as the job where something is to be cleaned up."""
    if any(Var(LIVE) in argument for argument in step.once_a_node):
        yield "runner_ask_for_live   # jobs of yours that Slurm knows; what others have left on a node may go"
    shape = (f"--nodes={plan.nodes}", f"--ntasks={plan.nodes}", "--ntasks-per-node=1")
    if step.at_end:
        # Of an existing allocation the keeper, too, gets what it needs and no more.
        exact = ("--exact",) if plan.existing_allocation or plan.launch else ()
        kept = (*library_file(_KEEPER), text(str(len(step.once_a_node))), *step.once_a_node)
        starter = (*_srun(plan), *_on_nodes(plan), *texts(*shape, *exact, *_KEPT))
        yield f"# On each node, beside the ranks: {step.does}; cleans up when this script ends."
        srun = command(starter, kept, step.at_end, indent="  ")
        yield f"coproc RUNNER_KEEPER {{\n  exec {srun}\n}}\nrunner_until_ready\n"
    else:
        starter = (*_srun(plan), *_of_allocation(plan), *_on_nodes(plan), *texts(*shape, *_FIRST))
        yield from script_parts.once_a_node(step, starter, " && ! runner_is_lost")
    if _uneven(plan):
        yield f"runner_place_ranks {' '.join(map(str, plan.tasks_per_node))}   # on each node\n"
    yield from script_parts.owners(plan)


def _srun(plan: Plan) -> tuple[Argument, ...]:
    return texts("srun", *(() if plan.mpi is None else (f"--mpi={plan.mpi}",)))


def _of_allocation(plan: Plan) -> tuple[Argument, ...]:
    """Of an existing allocation a step gets what it needs, and shares with the step that it was asked from."""
    if plan.existing_allocation is None:
        return texts("--exact") if plan.launch else ()
    return texts("--exact", *(("--overlap",) if plan.existing_allocation.overlap else ()))


def _on_nodes(plan: Plan) -> tuple[Argument, ...]:
    """Of an existing allocation the nodes are chosen, and the first of them is where rank 0 serves."""
    if plan.launch is not None:
        return ((Text("--nodelist="), Var(_NODE_LIST)),)
    return texts(f"--nodelist={','.join(plan.existing_allocation.nodes)}") if plan.existing_allocation else ()


def _srun_of_ranks(plan: Plan, step: StepSpec) -> str:
    uneven = _uneven(plan)
    clock = f"--time={_clock(plan.walltime_s)}"
    options: list[Argument] = [*_srun(plan)]
    options += texts(*(() if uneven else (f"--nodes={plan.nodes}",)), f"--ntasks={plan.tasks}")
    options += _of_allocation(plan)
    if uneven:
        options += texts("--distribution=arbitrary")  # beside which srun takes no --nodes (24.11)
    else:
        options += (*_on_nodes(plan), text(f"--ntasks-per-node={plan.tasks_per_node[0]}"))
    if plan.existing_allocation:
        # Untyped: Slurm finds no typed GPU in an allocation that was asked for without a type (22.05).
        options += texts(f"--gpus-per-node={plan.gpus_per_node}", clock)
    if plan.launch:
        options += texts(f"--gpus-per-node={plan.launch.node_gpus}", "--mem=0", clock)
    divided = plan.divides_cpus or plan.launch
    options.append((Text("--cpus-per-task="), Var(_CPUS) if divided else Text(str(plan.cpus_per_task))))
    if plan.whole_nodes or plan.launch:
        options += texts("--cpu-bind=none")  # the launcher binds, from the node's own sysfs
    options += texts(
        *(f"--{option}={value}" for option, value in sorted(settings(plan).step.items())),
        *("--kill-on-bad-exit=1", f"--wait={0 if plan.launch else plan.wait_s}"),
        *("--output=logs/rank-%t.out", "--error=logs/rank-%t.err"),
    )
    return command(options, *script_parts.grouped(step))


def _directives(plan: Plan, step: StepSpec, logs: str = "logs") -> Iterator[str]:
    site, given, most = settings(plan), dict(plan.directives), max(plan.tasks_per_node)
    _check_memory(given)
    for option, value in plan.directives:
        _check_option(option, value, plan)
    typed = f"{plan.gpu_type}:" if plan.gpu_type else ""
    tasks = {
        "per-node": [("ntasks-per-node", str(most))],
        "total": [("ntasks", str(plan.tasks)), ("mincpus", str(most * plan.cpus_per_task))],
    }
    # Slurm would spread an uneven total as it likes.
    gpus = {"gres": ("gres", f"gpu:{typed}{plan.gpus_per_node}"),
            "total" if not _uneven(plan) else "": ("gpus", f"{typed}{plan.gpus}")}  # fmt: skip
    memory = {
        "per-node": [("mem", f"{plan.memory_mb}M" if plan.memory_mb else "0")],
        "per-cpu": [("mem-per-cpu", f"{plan.memory_per_cpu_mb}M")],
    }
    exclusive = plan.whole_nodes and site.exclusive and "exclusive" not in given
    options: list[tuple[str, str | None]] = [
        ("job-name", plan.job_name),
        *([(site.queue_option, plan.queue)] if plan.queue is not None else ()),
        *([("account", plan.account)] if plan.account is not None else ()),
        *[("nodes", str(plan.nodes)), *tasks[site.tasks]],
        gpus.get(site.gpus, ("gpus-per-node", f"{typed}{plan.gpus_per_node}")),
        *([] if plan.divides_cpus else [("cpus-per-task", str(plan.cpus_per_task))]),
        *([] if any(option in MEMORY for option in given) else memory.get(site.memory, ())),
        *([("exclusive", None)] if exclusive else ()),
        *((option, value or None) for option, value in plan.directives),
        *step.directives,
        ("time", _clock(plan.walltime_s)),
        *([("signal", f"B:USR1@{min(120, plan.walltime_s // 5)}")] if plan.walltime_s >= 5 else ()),
        *[("no-requeue", None), ("export", site.export.upper()), ("output", f"{logs}/batch.out")],
        ("error", f"{logs}/batch.err"),
    ]
    return (sbatch_directive(option, value) for option, value in options)


def _check_memory(given: dict[str, str]) -> None:
    """Raises UsageError for options of memory that sbatch would not take."""
    sizes = {option: value for option, value in given.items() if option in MEMORY}
    where = "--scheduler-option, or slurm.directives of the site"
    if len(sizes) > 1:
        raise UsageError(f"--{' and --'.join(sizes)} exclude each other", where=where, fix="give one of them")
    for option, value in sizes.items():
        if not _SIZE.match(value):
            what = f"--{option}={value!r} is no size of memory"
            raise UsageError(what, where=where, fix=f"-S {option}=100G; -S mem=0 is all memory of each node")


def _check_option(option: str, value: str, plan: Plan) -> None:
    """Raises UsageError for an option that may not go to sbatch: why, and what to use instead."""
    if option not in MEMORY and any(name.startswith(option) for name in MEMORY):
        what = f"--{option} is short for more than one"
        raise UsageError(what, where="directives", fix=f"one of {', '.join(MEMORY)}")
    # getopt_long(3) takes the beginning of a name for the name.
    known = (*REFUSED, *PLANNED)
    name = option if option in known else next((each for each in known if each.startswith(option)), "")
    if option == settings(plan).queue_option:
        name = "partition"
    elif option.startswith(("container-", "no-container-")):  # Pyxis's
        name = "container"
    if not name:
        return
    of_site = option in settings(plan).directives
    where = f"site {plan.site}: slurm.directives.{option}" if of_site else f"--scheduler-option {option}"
    if option == "wait" and value:
        what = f"--wait={value!r} of srun is no number of seconds"
        raise UsageError(what, where=where, fix="-S wait=600; -S wait=0 lets the other ranks run as long as they need")
    if name in PLANNED:
        by = PLANNED[name]
        raise UsageError(f"--{option} is decided by the plan", where=where, fix=f"leave it out; it follows from {by}")
    raise UsageError(f"--{option} is not available: {REFUSED[name]}", where=where, fix="leave it out")


def _uneven(plan: Plan) -> bool:
    return len(set(plan.tasks_per_node)) > 1


def _clock(seconds: int) -> str:
    """Slurm's ``[days-]hours:minutes:seconds``."""
    days, rest = divmod(seconds, 86400)
    return f"{days}-{script_parts.clock(rest)}" if days else script_parts.clock(rest)
