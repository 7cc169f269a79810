"""The plan: everything about a job decided, nothing about it rendered."""

from __future__ import annotations

from typing import Literal

import msgspec

from runner.model.names import SchedulerName
from runner.model.request import Mount

RESULTS = "/results"  # where the run directory is seen by every rank, in every runtime


class PlannedImage(msgspec.Struct, frozen=True):
    """The image a job will use, pinned.

    Attributes:
        reference: what the user or recipe called it.
        digest: content digest (``sha256:...``); empty where the image was given as a file.
        path: the squashfs on the cluster's file system.
    """

    reference: str
    digest: str
    path: str


class Plan(msgspec.Struct, frozen=True):
    """A job, decided. A pure function of recipe, site, request and image.

    Attributes:
        tasks_per_node: ranks on each node, in node order; its length is the number of nodes.
        gpus_per_node: GPUs asked for on every node (the most that any node needs).
        cpus_per_task: schedulable CPUs of each rank.
        memory_mb: memory per node, MiB; 0 means all of it.
        directives: further scheduler options, long name -> value, in order.
        mounts: besides the run directory, which is always at RESULTS.
        env: environment of every rank, sorted by name; a later source (site < recipe < user) has won.
        program: the argument list below the launcher, starting in ``RESULTS/recipe``.
        wireup: how ranks find each other.
        device: what each rank must compute on.
        demonstration: why its figures are no performance claim; empty where they are.
    """

    job_name: str
    recipe: str
    framework: str
    result: Literal["throughput", "none"]
    site: str
    scheduler: SchedulerName
    runtime: str
    tasks_per_node: tuple[int, ...]
    gpus_per_node: int
    gpu_type: str
    cpus_per_task: int
    memory_mb: int
    exclusive: bool
    walltime_s: int
    partition: str | None
    account: str | None
    mpi: str
    directives: tuple[tuple[str, str], ...]
    image: PlannedImage
    mounts: tuple[Mount, ...]
    env: tuple[tuple[str, str], ...]
    program: tuple[str, ...]
    wireup: Literal["rendezvous"]
    device: Literal["cuda", "cpu"]
    demonstration: str

    @property
    def nodes(self) -> int:
        """Number of nodes."""
        return len(self.tasks_per_node)

    @property
    def tasks(self) -> int:
        """Number of ranks in the world."""
        return sum(self.tasks_per_node)
