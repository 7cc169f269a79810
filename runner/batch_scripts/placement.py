"""Where the processes of a script's launch come to be: on how many nodes, and how many on each. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from runner.batch_scripts.reading import Launch
from runner.model.plan import Starter
from runner.planning.shell_words import as_written
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
    of = launch.shape
    nodes = of.nodes if launch.by_srun or launch.name in _OF_ALL_NODES else 1
    tasks = of.tasks_per_node if launch.by_srun else 1
    if of.unknown or nodes is None or tasks is None:
        return of.unknown or "the script does not say how many nodes it takes"
    if launch.starter is None:
        return Placement(nodes, tasks, tasks, of.gpus_per_node or 0)
    if why := next(_unread(launch, launch.starter, nodes), ""):
        return why
    if not (processes := _processes(launch, nodes)):
        return f"{launch.name} takes all GPUs of a node, and the script asks for none"
    return Placement(nodes, tasks, tasks * processes, of.gpus_per_node or processes)


def _unread(launch: Launch, starter: Starter, nodes: int) -> Iterator[str]:
    """Why a starter's arguments do not tell how many processes it starts on each node."""
    said, name = launch.stated, starter.name
    if name in _OF_ALL_NODES:
        before = starter.arguments[: len(starter.arguments) - len(plain(starter))]
        words = (word.partition("=")[0].replace("_", "-") for word in before)
        if option := next(filter(_CHOOSES.fullmatch, words), "") or (":" if ":" in starter.arguments else ""):
            yield f"{name}'s {option} chooses where processes start, which is not read here"
        if nodes > 1 and name != "mpirun":
            yield f"{name} takes the nodes from a list of hosts, which is not read here"
    for key, value in said.items():
        if key in ("each", "total", "nodes") and not value.isdecimal() and (key, value) not in _BY_GPU:
            yield f"{name} gets a number that only a run tells: {as_written(value)}"
    total, starts = int(said.get("total", "0")), int(said.get("nodes", "0")) or nodes
    if total % starts:
        yield f"{name} starts {total} ranks, which {starts} nodes do not share evenly"
    if name == "mpirun" and nodes > 1 and 0 < total < nodes * (launch.shape.tasks_per_node or 1):
        yield f"{name} fills a node before the next, and {total} ranks are fewer than the job's tasks"


def _processes(launch: Launch, nodes: int) -> int | None:
    """Of one start of a starter; None where they are those of GPUs that the script does not ask for."""
    of, said = launch.shape, launch.stated
    each, total = said.get("each", ""), said.get("total", "")
    if each.isdecimal() or total:
        return int(each) if each.isdecimal() else int(total) // (int(said.get("nodes", "0")) or nodes)
    if launch.name in _OF_TASKS:
        return of.tasks_per_node
    return 1 if launch.name == "torchrun" and not each else of.gpus_per_node
