"""Where the processes of a script's launch come to be: on how many nodes, and how many on each. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from runner.batch_scripts.reading import Launch
from runner.planning.shell_text import as_written
from runner.planning.starters import plain

# They reach the other nodes by themselves, by ssh or through Slurm.
_OF_TASKS = ("mpirun", "horovodrun")
_OF_ALL_NODES = (*_OF_TASKS, "deepspeed")
# Their options that choose nodes, devices, or the processes of each; and what stands between several programs.
_CHOOSES = re.compile(
    r"--?(host|machine|rank|app)file|--?(hosts?|include|exclude|launcher|map-by|rf|ppn|n?per\w+|by\w+|host-.+|m\w+-np)"
    r"|-[NHief]\d*|:"
)
_BY_GPU = (("each", "gpu"), ("each", "auto"))


@dataclass(frozen=True)
class Placement:
    """Processes of the program.

    Attributes:
        starts: on each node, of what the step starts there: of the program, or of its starter.
        processes, gpus: on each node.
    """

    nodes: int
    starts: int
    processes: int
    gpus: int


def placement(launch: Launch) -> Placement | str:
    """Where it runs; a text says why that is unknown."""
    return next(_obstacles(launch), None) or _placed(launch)


def _obstacles(launch: Launch) -> Iterator[str]:
    """Why a script does not tell where its processes start."""
    of, said, name = launch.shape, launch.stated, launch.name
    if of.unknown:
        yield of.unknown
    on_all = launch.by_srun or name in _OF_ALL_NODES
    if (on_all and of.nodes is None) or (launch.by_srun and of.tasks_per_node is None):
        yield "the script does not say how many nodes it takes"
    if launch.starter is None:
        return
    arguments, nodes = launch.starter.arguments, _nodes(launch)
    if name in _OF_ALL_NODES:
        before = arguments[: len(arguments) - len(plain(launch.starter))]
        names = (word.partition("=")[0].replace("_", "-") for word in before)
        if option := next(filter(_CHOOSES.fullmatch, names), "") or (":" if ":" in arguments else ""):
            yield f"{name}'s {option} chooses where processes start, which is not read here"
        if nodes > 1 and name != "mpirun":
            yield f"{name} takes the nodes from a list of hosts, which is not read here"
    for key, value in said.items():
        if key in ("each", "total", "nodes") and not value.isdecimal() and (key, value) not in _BY_GPU:
            yield f"{name} gets a number that only a run tells: {as_written(value)}"
    total, starts = said.get("total"), int(said.get("nodes", "0")) or nodes
    if total and int(total) % starts:
        yield f"{name} starts {total} ranks, which {starts} nodes do not share evenly"
    if total and nodes > 1 and name == "mpirun" and int(total) < nodes * (of.tasks_per_node or 1):
        yield f"{name} fills a node before the next, and {total} ranks are fewer than the job's tasks"
    if not _processes(launch):
        yield f"{name} takes all GPUs of a node, and the script asks for none"


def _nodes(launch: Launch) -> int:
    return launch.shape.nodes or 1 if launch.by_srun or launch.name in _OF_ALL_NODES else 1


def _processes(launch: Launch) -> int | None:
    """Of one start of a starter; None where they are those of GPUs that the script does not ask for."""
    of, said = launch.shape, launch.stated
    each, total = said.get("each", ""), said.get("total", "")
    if each.isdecimal() or total:
        return int(each) if each.isdecimal() else int(total) // (int(said.get("nodes", "0")) or _nodes(launch))
    if launch.name in _OF_TASKS:
        return of.tasks_per_node
    return 1 if launch.name == "torchrun" and not each else of.gpus_per_node


def _placed(launch: Launch) -> Placement:
    of, tasks = launch.shape, (launch.shape.tasks_per_node or 1) if launch.by_srun else 1
    if launch.starter is None:
        return Placement(_nodes(launch), tasks, tasks, of.gpus_per_node or 0)
    processes = _processes(launch) or 1
    return Placement(_nodes(launch), tasks, tasks * processes, of.gpus_per_node or processes)
