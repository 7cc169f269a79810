"""Where the processes of a script's launch come to be: on how many nodes, and how many on each. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from runner.batch_scripts.reading import Launch
from runner.planning.shell_text import UNREAD, as_written

# They reach the other nodes by themselves, by ssh or through Slurm.
_OF_TASKS = ("mpirun", "horovodrun")
_OF_ALL_NODES = (*_OF_TASKS, "deepspeed")


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
    of, said = launch.shape, launch.stated
    nodes = of.nodes if launch.by_srun or launch.name in _OF_ALL_NODES else 1
    tasks = of.tasks_per_node if launch.by_srun else 1
    if nodes is None or tasks is None:
        return "the script does not say how many nodes it takes"
    for value in filter(None, (said.get(key) for key in ("each", "total", "nodes"))):
        if UNREAD in value:
            return f"{launch.name} gets a number that only a run tells: {as_written(value)}"
    if launch.starter is None:
        return Placement(nodes, tasks, tasks, of.gpus_per_node or 0)
    each, total = said.get("each", ""), said.get("total", "")
    if total.isdecimal() and int(total) % (starts := int(said.get("nodes", "0")) or nodes):
        return f"{launch.name} starts {total} ranks, which {starts} nodes do not share evenly"
    processes = of.gpus_per_node
    if each.isdecimal() or total.isdecimal():
        processes = int(each) if each.isdecimal() else int(total) // (int(said.get("nodes", "0")) or nodes)
    elif launch.name in _OF_TASKS:
        processes = of.tasks_per_node
    elif launch.name == "torchrun" and not each:
        processes = 1
    if not processes:
        return f"{launch.name} takes all GPUs of a node, and the script asks for none"
    return Placement(nodes, tasks, tasks * processes, of.gpus_per_node or processes)
