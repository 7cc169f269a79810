"""What is wrong with a batch script: a rule for each fault, over what was read. Pure, but for where its output goes."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path

from runner.batch_scripts.directives import ONLY_WITH, Header
from runner.batch_scripts.reading import BatchScript, Launch
from runner.core.text import counted, gpus_text
from runner.model.output import ScriptFault
from runner.planning.shell_words import UNREAD, as_written, unclosed
from runner.planning.starters import miscounts, number

_RULES: list[Callable[[BatchScript], Iterator[ScriptFault]]] = []


def faults(script: BatchScript) -> tuple[ScriptFault, ...]:
    """All faults, in the order of the lines; of one kind on one line the first."""
    found = [fault for rule in _RULES for fault in rule(script)]
    return tuple({(each.line, each.code): each for each in sorted(found, key=lambda each: each.line)}.values())


def output_faults(header: Header, start: Path) -> Iterator[ScriptFault]:
    """Directories of its output that are not there, for a job that is submitted from ``start``: Slurm makes none."""
    start /= header.options.get("chdir", "")
    for each in header.directives:
        folder = (start / each.value).parent if each.name in ("output", "error") else start
        if folder != start and not re.search(r"[%$\\].*/", each.value) and not folder.is_dir():
            what = f"there is no directory {folder} for --{each.name}: Slurm would end the job without a line of output"
            yield ScriptFault("no-output-directory", each.line, what, f"mkdir -p {shlex.quote(str(folder))}")


def _rule(rule: Callable[[BatchScript], Iterator[ScriptFault]]) -> Callable[[BatchScript], Iterator[ScriptFault]]:
    _RULES.append(rule)
    return rule


def _of_launches(rule: Callable[[BatchScript, Launch], Iterator[ScriptFault]]) -> None:
    _RULES.append(lambda script: (fault for launch in script.launches for fault in rule(script, launch)))


@_rule
def _text(script: BatchScript) -> Iterator[ScriptFault]:
    if not script.text.startswith("#!"):
        yield ScriptFault("no-shebang", 1, "the first line names no shell: sbatch refuses the script", "#!/bin/bash")
    if "\r\n" in script.text:
        yield ScriptFault("dos-lines", 1, "lines end as on Windows: sbatch refuses the script", "dos2unix FILE")
    for at, line in enumerate(script.text.splitlines(), 1):
        if re.search(r"(?<!\\)\\[ \t]+(#.*)?$", line) and not line.lstrip().startswith("#"):
            what = "a space or a comment after the backslash: the command ends here, and the next line is another one"
            yield ScriptFault("broken-continuation", at, what, "the backslash must be the last character of the line")
    if line_of_quote := unclosed(script.text):
        what = "a quote or a bracket begins here, and nothing closes it: the shell reads the rest as a part of it"
        yield ScriptFault("unclosed-quote", line_of_quote, what, "close it")


@_rule
def _header(script: BatchScript) -> Iterator[ScriptFault]:
    for each in script.header.late:
        what = f"--{each.name} stands below the first command: sbatch reads no #SBATCH there"
        yield ScriptFault("late-directive", each.line, what, "move it up, above all commands")
    for line, text in script.header.unread:
        what = f"sbatch does not read this as an option: {text}"
        yield ScriptFault("unread-directive", line, what, "#SBATCH --name=value")
    for each in script.header.directives:
        if "$" in each.value:
            what = f"--{each.name}={each.value}: sbatch expands no variables in #SBATCH lines"
            yield ScriptFault(
                "variable-in-directive", each.line, what, f"write the value, or `sbatch --{each.name}=... FILE`"
            )
        if each.name == "container-image":
            what = "the batch script itself runs in the container, where there is no srun and no scontrol"
            yield ScriptFault("slurm-in-container", each.line, what, "give --container-image to srun")


@_rule
def _unset(script: BatchScript) -> Iterator[ScriptFault]:
    """Variables that Slurm sets only with an option which this script does not give."""
    lines = script.text.splitlines()
    for name, option in ONLY_WITH.items():
        used = re.compile(rf"[^#]*\b{name}\b(?!=|:?[-+])")
        places = [at for at, line in enumerate(lines, 1) if used.match(line)]
        by_srun = any(option in launch.options for launch in script.launches)
        if places and option not in script.header.options and not by_srun and f"{name}=" not in script.text:
            what = f"${name} is empty: Slurm sets it only where --{option} is given"
            yield ScriptFault("unset-variable", places[0], what, f"#SBATCH --{option}=N, or write the number")


@_rule
def _waits(script: BatchScript) -> Iterator[ScriptFault]:
    last = max((at for at, each in enumerate(script.commands) if each.in_background), default=None)
    started = [each for each in script.launches if each.command.in_background]
    if last is not None and started and not any(each.words[:1] == ("wait",) for each in script.commands[last:]):
        what = "started in the background, and nothing waits for it: the job ends with the script's last line"
        yield ScriptFault("no-wait", started[-1].line, what, "`wait` as the last line")


@_of_launches
def _in_container(_script: BatchScript, launch: Launch) -> Iterator[ScriptFault]:
    # What the script's own shell fills in is called outside, before the container starts.
    inside = re.sub(rf"{UNREAD}[^{UNREAD}]*{UNREAD}", "", " ".join(launch.in_container))
    if launch.container and (name := re.search(r"\b(scontrol|srun|squeue|sinfo)\b", inside)):
        what = f"{name[1]} is called in the container, which has no Slurm"
        yield ScriptFault("slurm-in-container", launch.line, what, "call it before, and pass its answer in a variable")


@_of_launches
def _gpus(script: BatchScript, launch: Launch) -> Iterator[ScriptFault]:
    of = launch.shape
    tasks, gpus = of.tasks_per_node, of.gpus_per_node
    ranks = number(launch.stated.get("each", ""))
    if gpus is None:
        if launch.starter and ranks and ranks > 1 and not of.unknown and "exclusive" not in script.header.options:
            what = f"{launch.name} starts {ranks} ranks on each node, and the script asks for no GPU"
            yield ScriptFault("no-gpus", launch.line, what, f"#SBATCH --gpus-per-node={ranks}")
        return
    visible = launch.env.get("CUDA_VISIBLE_DEVICES", "")
    if re.fullmatch(r"\d+(,\d+)*", visible) and visible.count(",") + 1 != gpus:
        what = f"CUDA_VISIBLE_DEVICES={visible} names {visible.count(',') + 1} GPUs, and each node has {gpus}"
        yield ScriptFault("visible-devices", launch.line, what, "leave it out: Slurm sets it")
    if tasks is None:
        return
    bound = {**script.header.options, **launch.options}.get("gpu-bind", "none") not in ("none", "")
    if gpus > (of.gpus_per_task or gpus) or (bound and gpus > 1):
        what = "each task sees a part of its node's GPUs only, from 0 on: cuda:LOCAL_RANK fails, and NCCL has no NVLink"
        yield ScriptFault("gpus-per-task", launch.line, what, f"--gpus-per-node={gpus} for all tasks of a node")
    if launch.starter is None and launch.by_srun and tasks != gpus:
        idle = f"{gpus - tasks} of them idle, unless the program takes several" if tasks < gpus else "tasks share GPUs"
        what = f"{counted(tasks, 'task')} and {gpus_text(gpus)} on each node: {idle}"
        yield ScriptFault("tasks-and-gpus", launch.line, what, f"--ntasks-per-node={gpus}")
    if launch.starter is None and not launch.by_srun and (of.nodes or 1) * tasks > 1:
        what = "only one process starts: the script's own shell runs on the first node, and not once for each task"
        yield ScriptFault("not-by-srun", launch.line, what, f"srun {as_written(launch.words[0])} ...")
    if launch.by_srun and not of.is_even and (of.nodes or 2) > 1:
        what = "Slurm may put unlike numbers of tasks on the nodes (15 and 1 of 16 have been seen)"
        yield ScriptFault("uneven-tasks", launch.line, what, f"#SBATCH --ntasks-per-node={gpus}")


@_of_launches
def _counts(_script: BatchScript, launch: Launch) -> Iterator[ScriptFault]:
    """A starter's counts against the job's."""
    of, name = launch.shape, launch.name
    nodes, tasks, gpus = of.nodes, of.tasks_per_node, of.gpus_per_node
    if launch.starter is None:
        return
    if launch.by_srun and name not in ("mpirun", "horovodrun") and tasks is not None and tasks > 1:
        what = f"{name} starts the ranks of a node itself, and srun starts it {tasks} times on each"
        yield ScriptFault("starter-per-task", launch.line, what, f"srun --ntasks-per-node=1 {name} ...")
    elif nodes and gpus:
        for what in miscounts(launch.starter, nodes, gpus, by_gpu=True):
            fix = f"state {counted(nodes, 'node')} and {gpus_text(gpus)} on each, or ask for others"
            yield ScriptFault("counts", launch.line, what, fix)
    if name == "torchrun" and "each" not in launch.stated and gpus is not None and gpus > 1:
        what = f"torchrun starts one rank where --nproc-per-node is not given, and each node has {gpus_text(gpus)}"
        yield ScriptFault("counts", launch.line, what, f"--nproc-per-node={gpus}")


@_of_launches
def _meeting(_script: BatchScript, launch: Launch) -> Iterator[ScriptFault]:
    """How the ranks of several nodes find each other."""
    nodes, said = launch.shape.nodes, launch.stated
    if launch.name not in ("torchrun", "accelerate") or nodes is None or nodes < 2:
        return
    if not launch.by_srun:
        what = f"{launch.name} starts on the first node only: the job has {nodes} nodes, and there is no srun before it"
        yield ScriptFault("not-by-srun", launch.line, what, f"srun --ntasks-per-node=1 {launch.name} ...")
        return
    address, backend = said.get("place", ""), said.get("--rdzv-backend", "static")
    if "--standalone" in said:
        what = f"--standalone is for one node, and the job has {nodes}: {nodes} worlds"
        yield ScriptFault(
            "no-rendezvous",
            launch.line,
            what,
            "srun bash -c 'torchrun --node-rank=$SLURM_NODEID --rdzv-endpoint=FIRST-NODE:29500 ...'",
        )
    elif not address or re.match(r"localhost|127\.|0\.0\.0\.0", address):
        what = f"the nodes do not know where to meet: {as_written(address) or 'no --rdzv-endpoint'}"
        yield ScriptFault(
            "no-rendezvous", launch.line, what, "the name of the first node, from `scontrol show hostnames`"
        )
    elif _by_task(address, r"hostname|SLURMD_NODENAME") or _by_task(said.get("--rdzv-id", ""), r"RANDOM|uuid|date"):
        what = "each node makes this of its own, and they meet nowhere: " + as_written(
            f"{address} {said.get('--rdzv-id', '')}".strip()
        )
        yield ScriptFault("no-rendezvous", launch.line, what, "make it in the script, before srun, and pass it on")
    elif backend == "static" and UNREAD not in (rank := said.get("index", "0")):
        what = f"every node gets the rank {rank}: " + (
            "the script's own shell fills it in, once" if "index" in said else "--node-rank is not given, which is 0"
        )
        fix = "srun bash -c '... --node-rank=$SLURM_NODEID ...' in single quotes"
        yield ScriptFault("node-rank", launch.line, what, fix)


@_of_launches
def _cpus(script: BatchScript, launch: Launch) -> Iterator[ScriptFault]:
    cpus = script.shape.cpus_per_task
    given = "cpus-per-task" in launch.options or "SRUN_CPUS_PER_TASK" in launch.env
    if launch.by_srun and cpus is not None and cpus > 1 and not given:
        what = f"srun does not take --cpus-per-task={cpus} from sbatch since Slurm 22.05: a task may get one CPU"
        fix = "srun --cpus-per-task=$SLURM_CPUS_PER_TASK, or export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK"
        yield ScriptFault("srun-cpus", launch.line, what, fix)


def _by_task(value: str, pattern: str) -> bool:
    """Whether each task expands this by itself: what the script's own shell leaves unknown has two marks."""
    own = re.sub(rf"{UNREAD}{{2}}[^{UNREAD}]*{UNREAD}{{2}}", "", value)
    return UNREAD in value and UNREAD in own and re.search(pattern, own) is not None
