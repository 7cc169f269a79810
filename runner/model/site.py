"""What is known of a site: the facts that shape a job there, each with its source."""

from __future__ import annotations

from typing import Literal

import msgspec

from runner.model.names import SchedulerName
from runner.model.recipe import Option


class NodeShape(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One GPU node, as the scheduler sees it.

    Attributes:
        cores: physical cores.
        threads_per_core: hardware threads that the scheduler hands out per core.
        memory_mb: memory that jobs may use, MiB.
        gpus: GPUs per node.
        gpu_type: the GRES type (``a100``); empty where GPUs are requested untyped.
        gpu_model: for people.
        count: nodes that one job may have; None where unknown.
    """

    cores: int
    memory_mb: int
    gpus: int
    threads_per_core: int = 1
    gpu_type: str = ""
    gpu_model: str = ""
    count: int | None = None

    @property
    def cpus(self) -> int:
        """Schedulable CPUs: hardware threads."""
        return self.cores * self.threads_per_core


class SlurmFacts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How jobs are asked for where Slurm rules.

    Attributes:
        partition: default partition; None leaves the choice to Slurm.
        mpi: value of ``srun --mpi`` for a launch that needs no PMI.
        exclusive: ask for ``--exclusive`` (and all memory) when whole nodes are used.
        directives: further ``#SBATCH`` options that the site demands, long name without dashes -> value.
    """

    partition: str | None = None
    mpi: str = "none"
    exclusive: bool = True
    directives: dict[str, str] = {}


class Site(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One cluster (or this machine) in one way of running containers.

    Attributes:
        runtimes: container runtimes found there, the default first.
        device: what a rank computes on: ``cuda``, or ``cpu`` where the GPUs are fake.
        walltime_s: default time limit of a job, seconds; max_walltime_s: the longest allowed.
        image_tags: image reference without tag -> tag that fits this site.
        env: environment of every job there (fabric, caches); user and recipe override it.
        options: recipe name -> program options that make the recipe fit this site.
        demonstration: why figures from here are no performance claim; empty where they are.
        box: the scheduler is a box on this machine (``runner box``), of this name.
        sources: fact (dotted key) -> where it is from and when, or ``unconfirmed``.
        proven: runtime -> the recorded run (date, version, command) that proved it; absent means UNPROVEN.
    """

    name: str
    description: str
    scheduler: SchedulerName
    runtimes: tuple[str, ...]
    node: NodeShape
    slurm: SlurmFacts = SlurmFacts()
    device: Literal["cuda", "cpu"] = "cuda"
    walltime_s: int = 1200
    max_walltime_s: int | None = None
    image_tags: dict[str, str] = {}
    env: dict[str, str] = {}
    options: dict[str, dict[str, Option]] = {}
    demonstration: str = ""
    box: str = ""
    sources: dict[str, str] = {}
    proven: dict[str, str] = {}
