"""What is known of a site: the facts that shape a job there, each with its source."""

from __future__ import annotations

from typing import Literal

import msgspec

from runner.model.environment import FrameworkSource, Kind, Setup
from runner.model.hardware import Hardware
from runner.model.recipe import Option
from runner.model.request import Mount
from runner.model.schedulers import SCHEDULERS, SchedulerName

Owned = Literal["account", "project", "scratch"]  # what only the user can tell a site


class NodeShape(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One GPU node, as the scheduler sees it.

    Attributes:
        cores: physical cores.
        threads_per_core: hardware threads that the scheduler hands out per core.
        memory_mb: memory that jobs may use, MiB.
        gpus: GPUs per node.
        gpu_type: the GRES type (``a100``); empty where GPUs are requested untyped.
        gpu_model: for people.
        cpus_per_gpu: the most schedulable CPUs that a job may have for each GPU; None where only the node bounds it.
        count: nodes that one job may have; None where unknown.
    """

    cores: int
    memory_mb: int
    gpus: int
    threads_per_core: int = 1
    gpu_type: str = ""
    gpu_model: str = ""
    cpus_per_gpu: int | None = None
    count: int | None = None

    @property
    def cpus(self) -> int:
        """Schedulable CPUs: hardware threads."""
        return self.cores * self.threads_per_core


NO_NODE = NodeShape(cores=0, memory_mb=0, gpus=0)  # the file does not say


class Queue(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What one queue, partition or QOS takes.

    Attributes:
        min_nodes, max_nodes: of one job; None where there is no limit, or none known.
        max_walltime_s: the longest job, seconds; None as above.
    """

    min_nodes: int = 1
    max_nodes: int | None = None
    max_walltime_s: int | None = None


class SlurmFacts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How jobs are asked for where Slurm rules.

    Attributes:
        queue_option: what a queue is there: a ``partition``, or a ``qos``.
        tasks: ``per-node`` for ``--ntasks-per-node``; ``total`` for ``--ntasks`` with ``--mincpus``.
        gpus: ``per-node`` for ``--gpus-per-node``, ``gres`` for ``--gres=gpu:``, ``total`` for ``--gpus``.
        memory: ``per-node`` for ``--mem``, ``per-cpu`` for ``--mem-per-cpu``, ``none`` where the site shares it out.
        mpi: value of ``srun --mpi`` for a launch that needs no PMI; null leaves the option out.
        exclusive: ask for ``--exclusive`` when whole nodes are used.
        directives: further ``#SBATCH`` options that the site demands, long name without dashes -> value.
        step: further options of ``srun``, long name -> value.
    """

    queue_option: Literal["partition", "qos"] = "partition"
    tasks: Literal["per-node", "total"] = "per-node"
    gpus: Literal["per-node", "gres", "total"] = "per-node"
    memory: Literal["per-node", "per-cpu", "none"] = "per-node"
    mpi: str | None = "none"
    exclusive: bool = True
    directives: dict[str, str] = {}
    step: dict[str, str] = {}


class PbsFacts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How jobs are asked for where PBS Pro or OpenPBS rules.

    Attributes:
        chunk: resources of every chunk of ``select`` besides its number (``system: polaris``).
        whole_nodes: a chunk is a whole node, so that CPUs, GPUs and memory are not asked for by number.
        place: value of ``-l place``.
        resources: further ``-l NAME=VALUE`` (``filesystems: home:eagle``).
        directives: further options of ``qsub``, one letter -> value.
        cpu_bind: value of ``mpiexec --cpu-bind``; the launcher binds where it is ``none``.
    """

    chunk: dict[str, str] = {}
    whole_nodes: bool = False
    place: str = "scatter"
    resources: dict[str, str] = {}
    directives: dict[str, str] = {}
    cpu_bind: str = "none"


class SshFacts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How nodes are reached where no scheduler gives them out.

    Attributes:
        hosts: name, as the user's own ssh takes it -> ranks (GPUs) that it has room for, in the order in which they
            are filled; ``--hosts`` and ``--hostfile`` win over it.
        config: file that ssh reads in the place of the user's own (``ssh -F``); absolute, empty for the user's own.
    """

    hosts: dict[str, int] = {}
    config: str = ""


class MpiFacts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How MPI programs are started there.

    Attributes:
        pmi: PMI plugins that the site's starter of tasks is known to have (``srun --mpi=list``).
        abi: the host's MPI, whose ABI a program in a container must share to use it; empty where unknown.
        load: lines that make it available, as of a way; left out where ranks meet without MPI.
    """

    pmi: tuple[Literal["pmix", "pmi2"], ...] = ()
    abi: Literal["openmpi", "mpich", ""] = ""
    load: tuple[tuple[str, ...], ...] = ()


class RuntimeAtSite(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One runtime of a site: what it needs there, besides the site's own facts.

    Attributes:
        load: lines that make it available, each an argument list: ``[module, load, apptainer]``,
            ``[source, /path/activate]``, ``[conda, activate, /path]``.
        env: environment of every job in this way; it overrides the site's.
        mounts: what of the host its jobs see, besides what the user mounts.
        modules: modules of the container runtime's own (Shifter's, podman-hpc's).
        library_path: put before the image's own LD_LIBRARY_PATH: the host's libraries, as mounted.
        setup: natively: the modules, and what is activated, that bring the program's Python, or what ``env create``
            builds upon.
        environment: natively: name of the one that ``env create`` makes, and jobs use where ``--env-name`` is not told.
        kind: natively: what ``env create`` makes there.
        framework: natively: where ``env create`` takes it from; ``modules``: those of ``setup`` bring it.
    """

    load: tuple[tuple[str, ...], ...] = ()
    env: dict[str, str] = {}
    mounts: tuple[Mount, ...] = ()
    modules: tuple[str, ...] = ()
    library_path: str = ""
    setup: Setup = Setup()
    environment: str = ""
    kind: Kind = "virtualenv"
    framework: FrameworkSource = "pip"


class Home(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Home directories there.

    Attributes:
        quota_gb: what one may hold, GB; None where that is as good as everything.
        for_jobs: jobs may write there.
    """

    quota_gb: int | None = None
    for_jobs: bool = True


class Scratch(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The large file system that all nodes see.

    Attributes:
        path: a user's own directory on it, where the user names no other: ``/scratch/{user}``.
        purge_days: after how many days an unused file is removed; None for never.
        workspaces: directories on it expire, as ``ws_list`` tells (hpc-workspace).
    """

    path: str = ""
    purge_days: int | None = None
    workspaces: bool = False


class WithoutGpus(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What takes the place of a site's own words where its node is a machine in which no GPU is found."""

    demonstration: str = ""
    image_tags: dict[str, str] = {}
    env: dict[str, str] = {}
    options: dict[str, dict[str, Option]] = {}


class Site(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One cluster (or this machine), in each of its ways of running a job.

    ``{account}``, ``{project}``, ``{scratch}`` and ``{user}`` in a value stand for the user's own.

    Attributes:
        extends: name or path of a site that this file changes; mappings are merged, all else is replaced.
        scheduler: who gives out nodes.
        runtimes: ways of running found there, the default first.
        ways: runtime -> what it needs there.
        node: the GPU node that jobs are planned for.
        queues: name -> limits, in the order in which they are tried; queue: the default, where it is always one.
        slurm, pbs: how the scheduler is asked there.
        ssh: the nodes, where the scheduler is ``hosts``: none but the user's own ssh.
        mpi: how MPI programs are started there.
        needs: what of the user's a job cannot do without.
        account_suffix: what GPU jobs append to the account's name.
        submit_below: directories below which jobs must be submitted; empty where it does not matter.
        home, scratch: the rules for these file systems.
        runtimes: container runtimes found there, the default first.
        node: required, but where the scheduler is ``local`` and the machine itself is asked, or ``hosts``, whose list
            says it.
        hardware: what an image must fit: driver, GPUs, processors.
        device: what a rank computes on: ``cuda``, or ``cpu`` where the GPUs are fake.
        walltime_s: default time limit of a job, seconds; max_walltime_s: the longest allowed.
        local_scratch: directory of each node's own for large files of a job (``--stage``); absolute.
        image_tags: image reference without tag -> tag that fits this site.
        env: environment of every job there (fabric, caches); user and recipe override it.
        options: recipe name -> program options that make the recipe fit this site.
        demonstration: why figures from here are no performance claim; empty where they are.
        box: the scheduler is a box on this machine (``runner box``), of this name.
        sources: fact (dotted key) -> where it is from and when, or ``unconfirmed``.
        proven: runtime (or ``runtime/wireup``) -> the recorded run (date, version, command) that proved it; absent
            means UNPROVEN.
    """

    name: str
    description: str
    scheduler: SchedulerName
    runtimes: tuple[str, ...]
    extends: str = ""
    ways: dict[str, RuntimeAtSite] = {}
    queues: dict[str, Queue] = {}
    queue: str | None = None
    node: NodeShape = NO_NODE
    without_gpus: WithoutGpus = WithoutGpus()
    slurm: SlurmFacts = SlurmFacts()
    pbs: PbsFacts = PbsFacts()
    ssh: SshFacts = SshFacts()
    mpi: MpiFacts = MpiFacts()
    needs: tuple[Owned, ...] = ()
    account_suffix: str = ""
    submit_below: tuple[str, ...] = ()
    home: Home = Home()
    scratch: Scratch = Scratch()
    hardware: Hardware = Hardware()
    device: Literal["cuda", "cpu"] = "cuda"
    walltime_s: int = 1200
    max_walltime_s: int | None = None
    local_scratch: str = "/tmp"
    image_tags: dict[str, str] = {}
    env: dict[str, str] = {}
    options: dict[str, dict[str, Option]] = {}
    demonstration: str = ""
    box: str = ""
    sources: dict[str, str] = {}
    proven: dict[str, str] = {}

    @property
    def directives(self) -> dict[str, str]:
        """The scheduler's options of every job."""
        section = SCHEDULERS[self.scheduler].directives
        return dict(getattr(self, section).directives) if section else {}
