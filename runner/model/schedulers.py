"""What is known of each scheduler besides its clients and its scripts: one row each.

A new scheduler is a folder of ``runner.backends.schedulers``, its name in ``SchedulerName`` and its row here.
"""

from __future__ import annotations

from typing import Literal

import msgspec

SchedulerName = Literal["slurm", "pbs", "local", "hosts"]


class SchedulerFacts(msgspec.Struct, frozen=True):
    """One scheduler.

    Attributes:
        folder: in ``runner.backends.schedulers``.
        nodes: where a job's nodes come from: the scheduler allocates them, the user lists them, or it is this machine.
        launcher: the program that starts a job's tasks; empty where the script itself does.
        directives: the section of a site file whose ``directives`` are options of every job; empty without one.
        exclusive_nodes: a job that has all GPUs of its nodes shares them with no other job.
        compared: ``site check`` compares a site file with the cluster that answers.
        asks_memory: every job asks for its memory.
        nodes_differ: the nodes of one job can have different numbers of GPUs.
        steps: a job can run as a step of an allocation that the shell holds.
        one_allocation: the launches of a study can run one after another in one job.
        version: command whose first line of output has its version; empty where there is none to ask.
    """

    folder: str
    nodes: Literal["allocated", "listed", "this-machine"]
    launcher: str = ""
    directives: Literal["slurm", "pbs", ""] = ""
    exclusive_nodes: bool = True
    compared: bool = False
    asks_memory: bool = False
    nodes_differ: bool = False
    steps: bool = False
    one_allocation: bool = False
    version: tuple[str, ...] = ()


SCHEDULERS: dict[SchedulerName, SchedulerFacts] = {
    "slurm": SchedulerFacts(
        "slurm",
        "allocated",
        launcher="srun",
        directives="slurm",
        compared=True,
        steps=True,
        one_allocation=True,
        version=("srun", "--version"),
    ),
    "pbs": SchedulerFacts(
        "pbs",
        "allocated",
        launcher="mpiexec",
        directives="pbs",
        compared=True,
        asks_memory=True,
        nodes_differ=True,
        version=("qstat", "--version"),
    ),
    "local": SchedulerFacts("local", "this-machine", one_allocation=True),
    # Nothing keeps other users' programs away.
    "hosts": SchedulerFacts("ssh", "listed", exclusive_nodes=False, one_allocation=True),
}
