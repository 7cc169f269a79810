"""Where the processes of a script's launch come to be: on how many nodes, and how many on each. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from runner.batch_scripts.reading import Launch
from runner.batch_scripts.shell import shown

# They reach the other nodes by themselves, by ssh or through Slurm.
_OF_ALL_NODES = ("mpirun", "mpiexec", "mpiexec.hydra", "orterun", "horovodrun", "deepspeed")


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
    """Where it runs; a text says why that cannot be told."""
    of, said = launch.shape, launch.stated
    by_all = launch.name in _OF_ALL_NODES and launch.starter is not None
    nodes = of.nodes if launch.by_srun or by_all else 1
    tasks = of.tasks_per_node if launch.by_srun else 1
    if nodes is None or tasks is None:
        return "the script does not say how many nodes it takes"
    for value in (said.get("ranks", ""), said.get("all", ""), said.get("nodes", "")):
        if value and not value.isdecimal() and value not in ("gpu", "auto"):
            return f"{launch.name} gets a number that only a run tells: {shown(value)}"
    if launch.starter is None:
        return Placement(nodes, tasks, tasks, of.gpus_per_node or 0)
    gpus = of.gpus_per_node
    if said.get("ranks", "").isdecimal():
        each: int | None = int(said["ranks"])
    elif said.get("all", "").isdecimal():
        machines = int(said.get("nodes", "0")) or nodes
        if int(said["all"]) % machines:
            return f"{launch.name} starts {said['all']} ranks, which {machines} nodes do not share evenly"
        each = int(said["all"]) // machines
    elif launch.name in ("mpirun", "mpiexec", "mpiexec.hydra", "orterun", "horovodrun"):
        each = of.tasks_per_node
    else:
        each = 1 if launch.name == "torchrun" and "ranks" not in said else gpus
    if each is None or each < 1:
        return f"{launch.name} takes all GPUs of a node, and the script asks for none"
    return Placement(nodes, tasks, tasks * each, gpus if gpus is not None else each)
