"""What a site's GPU nodes are made of, as far as an image must fit it."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from runner.model.backends import SCHEDULERS, SchedulerSettings, settings_of
from runner.model.image import EnvironmentKind, FrameworkSource, Setup
from runner.model.request import Mount, Option, Transport, World

# A feature of Slurm nodes whose GPUs are fake, so that any client sees that ranks compute on CPUs there.
FAKE_GPUS = "fake-gpus"
DEMONSTRATION = "CPU, fake GPUs: demonstration, no performance claim"


class Hardware(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Empty where unknown; then nothing is checked.

    Attributes:
        driver: NVIDIA's, of the oldest node: ``535.104.05``.
        compute_capability: of the GPUs: ``8.0``.
        cpu: architecture as ``uname -m`` says: ``x86_64``, ``aarch64``.
    """

    driver: str = ""
    compute_capability: str = ""
    cpu: str = ""


class AtSite(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The user's values at one site; empty, or null, where not given."""

    account: str = ""
    project: str = ""
    scratch: str = ""
    field: str = ""
    world: World | None = None


class AtRegistry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the user says of one registry.

    Attributes:
        token_service: ``HOST[:PORT]`` of another host, to which the registry's login may be sent for a token.
    """

    token_service: str = ""


class UserConfig(AtSite, frozen=True, forbid_unknown_fields=True):
    """The file. ``site`` is the default of --site; the others hold wherever ``sites`` gives no other value.

    ``registries``: ``HOST[:PORT]`` of a registry -> what the user says of it.
    """

    site: str = ""
    sites: dict[str, AtSite] = {}
    registries: dict[str, AtRegistry] = {}


Owned = Literal["account", "project", "scratch", "field"]  # values that only the user knows


class NodeShape(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One GPU node, as the scheduler sees it.

    Attributes:
        cores: physical cores.
        threads_per_core: hardware threads that the scheduler hands out per core.
        memory_mb: memory that jobs may use, MiB.
        gpus: GPUs per node.
        gpu_type: the GRES type (``a100``); empty where GPUs are requested untyped.
        gpu_model: the GPU's name, for messages.
        cpus_per_gpu: the most schedulable CPUs of a job for each GPU; None where only the node bounds it.
        shared_cpus: the most schedulable CPUs of a job that does not have all GPUs of the node; None for no limit.
        count: nodes that one job may have; None where unknown.
    """

    cores: int
    memory_mb: int
    gpus: int
    threads_per_core: int = 1
    gpu_type: str = ""
    gpu_model: str = ""
    cpus_per_gpu: int | None = None
    shared_cpus: int | None = None
    count: int | None = None

    @property
    def cpus(self) -> int:
        """Schedulable CPUs: hardware threads."""
        return self.cores * self.threads_per_core

    def most_cpus_per_gpu(self, gpus: int) -> int | None:
        """Of a job with so many GPUs on the node; None where only the node bounds it.

        >>> NodeShape(cores=48, memory_mb=1, gpus=8, cpus_per_gpu=6, shared_cpus=40).most_cpus_per_gpu(7)
        5
        """
        shared = self.shared_cpus // gpus if self.shared_cpus is not None and gpus < self.gpus else None
        return min((most for most in (self.cpus_per_gpu, shared) if most is not None), default=None)


NO_NODE = NodeShape(cores=0, memory_mb=0, gpus=0)  # the file does not say


class Queue(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What one queue, partition or QOS takes, and what its nodes are.

    Attributes:
        min_nodes, max_nodes: of one job; None where there is no limit, or none known.
        max_gpus: of one job; None as above.
        min_walltime_s, max_walltime_s: the shortest and the longest job, seconds; None as above.
        walltimes_s: the longest job by its nodes: pairs of the most nodes and seconds, the fewest nodes first.
        by_name: only jobs that name it (``--queue``) go there.
        interactive: the allocation of a step (``run``) is asked for there.
        warning: what its jobs must expect; empty for nothing.
        whole_nodes: its jobs get whole nodes, and are charged for them, however few GPUs they ask for.
        gpu_type: ``--gpu-type`` with this name goes there, and the queue decides the type: the scheduler is asked for
            GPUs without one.
        node: its nodes, where they differ from the site's ``node``.
        hardware: what an image must fit there, where it differs from the site's ``hardware``.
    """

    min_nodes: int = 1
    max_nodes: int | None = None
    max_gpus: int | None = None
    min_walltime_s: int = 0
    max_walltime_s: int | None = None
    walltimes_s: tuple[tuple[int, int], ...] = ()
    by_name: bool = False
    interactive: bool = False
    warning: str = ""
    whole_nodes: bool = False
    gpu_type: str = ""
    node: NodeShape | None = None
    hardware: Hardware | None = None


class SshFacts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How nodes are reached where no scheduler gives them out.

    Attributes:
        hosts: name, as the user's own ssh takes it -> ranks (GPUs) that it has room for, in the order in which they
            are filled; ``--hosts`` and ``--hostfile`` win over it.
        config: the configuration file for ssh (``ssh -F``); absolute, empty for the user's default.
    """

    hosts: dict[str, int] = {}
    config: str = ""


class MpiFacts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How MPI programs are started there.

    Attributes:
        pmi: PMI plugins that the site's starter of tasks is known to have (``srun --mpi=list``).
        abi: the host's MPI, whose ABI a program in a container must share to use it; empty where unknown.
        load: lines that make it available, as in ``ways``; left out, with the rest, where ranks meet without MPI.
        mounts: what a container needs of the host to use it, besides those of its way.
        library_variable: that ``load`` sets to the directories of its libraries, which go before the image's own
            (Apptainer, Singularity).
    """

    pmi: tuple[Literal["pmix", "pmi2"], ...] = ()
    abi: Literal["openmpi", "mpich", ""] = ""
    load: tuple[tuple[str, ...], ...] = ()
    mounts: tuple[Mount, ...] = ()
    library_variable: str = ""


class RuntimeAtSite(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One runtime at a site: what it needs there, besides the facts of the site.

    Attributes:
        load: lines that make it available, each an argument list: ``[module, load, apptainer]``,
            ``[source, /path/activate]``, ``[conda, activate, /path]``.
        env: environment of every job in this runtime; it overrides the site's, and null takes a variable away.
        mounts: what jobs see of the host, besides the user's mounts.
        modules: modules of the container runtime itself (Shifter's, podman-hpc's).
        visible: for ``shifter``: host directories that every container shows under the same path; the run directory
            and the program's must lie below them.
        library_path: put before the image's own LD_LIBRARY_PATH: the host's libraries, as mounted.
        options: further options of Apptainer's or Singularity's ``exec`` (``[--fakeroot]``), or ``podman run``.
        setup: for ``native``: the modules, and what is activated, that bring the program's Python, or on which
            ``env create`` builds.
        environment: for ``native``: the environment that ``env create`` makes; jobs without ``--env-name`` use it.
        kind: for ``native``: what ``env create`` makes there.
        framework: for ``native``: where ``env create`` takes it from; ``modules``: those of ``setup`` bring it.
    """

    load: tuple[tuple[str, ...], ...] = ()
    env: dict[str, str | None] = {}
    mounts: tuple[Mount, ...] = ()
    modules: tuple[str, ...] = ()
    visible: tuple[str, ...] = ()
    library_path: str = ""
    options: tuple[str, ...] = ()
    setup: Setup = Setup()
    environment: str = ""
    kind: EnvironmentKind = "virtualenv"
    framework: FrameworkSource = "pip"


class Home(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Home directories there.

    Attributes:
        quota_gb: how much one may hold, GB; None for no limit that matters.
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


class Fabric(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What carries data between nodes; only ``expect`` reads it.

    Attributes:
        adapters: of a node, for data of jobs; not those of storage.
        gbit_s: line rate of each, Gbit/s.
    """

    adapters: int
    gbit_s: float


class WithoutGpus(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What replaces the site's values on a machine without a GPU."""

    demonstration: str = ""
    image_tags: dict[str, str] = {}
    env: dict[str, str | None] = {}
    options: dict[str, dict[str, Option]] = {}


class SiteFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One cluster, a list of hosts, or this machine, with every runtime that jobs can use there.

    Besides these keys a file has its scheduler's section (``slurm``, ``pbs``): how jobs are requested from it.

    ``{account}``, ``{project}``, ``{scratch}``, ``{field}`` and ``{user}`` in a value stand for the user's values;
    ``{application}``: see ``applications``.

    Attributes:
        name: of the site, as ``--site`` takes it.
        description: one line for people.
        scheduler: what starts jobs; the list below has them.
        runtimes: the runtimes that jobs can use there, the default first.
        extends: name or path of a site that this file changes; mappings are merged, all else is replaced.
        ways: runtime -> what it needs there.
        queues: name -> limits, in the order in which they are tried.
        queue: the default queue; null where the limits choose one.
        node: the GPU node that jobs are planned for. Required, except with the scheduler ``local`` (this machine is
            examined) and ``hosts`` (the list of hosts says it).
        without_gpus: what replaces values of this file if the node is this machine and has no GPU.
        ssh: the nodes, with the scheduler ``hosts``.
        login: ``USER@HOST`` of its login node, as your ssh takes it: commands for this site, given on another machine,
            are handed on there; empty where they are given on the login node itself.
        remote_dir: with ``login``: the directory there that your working directories are copied into; relative to the
            home directory.
        mpi: how MPI programs are started there.
        needs: the user's values that every job needs.
        hints: one of these values -> how a user finds it out there, one line.
        applications: recipe name, or ``default`` -> the site's name for what it runs: ``{application}`` in a value.
        published: name, in PATH, of a program of its login nodes that lists fields and applications.
        account_suffix: what is appended to the account's name for GPU jobs.
        submit_below: directories below which jobs must be submitted; empty where any directory will do.
        home: the rules for home directories.
        scratch: the rules for the large file system.
        hardware: what an image must fit: driver, GPUs, processors.
        device: what a rank computes on: ``cuda``, or ``cpu`` where the GPUs are fake.
        transport: what must carry data between nodes; null where that is unknown. Where ``verbs`` or
            ``libfabric`` is planned, a run over sockets is not proven.
        fabric: the adapters of a node that carry data between nodes; null where they are unknown.
        chaining: jobs may submit jobs (``--until-done``).
        walltime_s: default time limit of a job, seconds.
        max_walltime_s: the longest time limit allowed, seconds; null for none.
        idle_gpus_s: after how long the site ends a job that leaves a GPU idle, seconds; null where that is unknown.
        ssh_to_nodes: whether the user's ssh gets from a login node to the nodes of a job of theirs; null where that is
            unknown: a tunnel of ``serve`` goes to a port then, else by ssh to a socket.
        user_sshd: users may run an sshd of their own in their jobs (``shell --ssh``): for keys alone, without a port.
        local_scratch: directory on each node's own disk for large files of a job (``--stage``); absolute.
        image_tags: image reference without tag -> tag that fits this site; left out for that of a plain ``build``.
        env: environment of every job there (fabric, caches); recipe and user override it, null takes away what the
            extended site sets. What concerns data between nodes (``NCCL_IB_*``, ``FI_*``, ``HOROVOD_GLOO_IFACE`` and
            their like) is set for jobs on several nodes only.
        options: recipe name -> program options that make the recipe fit this site.
        world: how many devices of a job shall be in one world, where ``--world`` does not say: ``any`` number, or
            ``none``, as programs work each for itself; null where that is for the program to say.
        demonstration: why throughput measured there is no performance claim; empty where it is one.
        box: name of the box on this machine whose scheduler this is; empty for a real cluster.
        sources: fact (dotted key) -> its source and date, or ``unconfirmed``.
        proven: runtime (or ``runtime/wireup``) -> the recorded run (date, version, command) that proved it; what is not
            listed is UNPROVEN.
    """

    name: str
    description: str
    scheduler: str
    runtimes: tuple[str, ...]
    extends: str = ""
    ways: dict[str, RuntimeAtSite] = {}
    queues: dict[str, Queue] = {}
    queue: str | None = None
    node: NodeShape = NO_NODE
    without_gpus: WithoutGpus = WithoutGpus()
    ssh: SshFacts = SshFacts()
    login: str = ""
    remote_dir: str = "gpu-runner"
    mpi: MpiFacts = MpiFacts()
    needs: tuple[Owned, ...] = ()
    hints: dict[Owned, str] = {}
    applications: dict[str, str] = {}
    published: str = ""
    account_suffix: str = ""
    submit_below: tuple[str, ...] = ()
    home: Home = Home()
    scratch: Scratch = Scratch()
    hardware: Hardware = Hardware()
    device: Literal["cuda", "cpu"] = "cuda"
    transport: Transport | None = None
    fabric: Fabric | None = None
    chaining: bool = True
    walltime_s: int = 1200
    max_walltime_s: int | None = None
    idle_gpus_s: int | None = None
    ssh_to_nodes: bool | None = None
    user_sshd: bool = False
    local_scratch: str = "/tmp"
    image_tags: dict[str, str] = {}
    env: dict[str, str | None] = {}
    options: dict[str, dict[str, Option]] = {}
    world: World | None = None
    demonstration: str = ""
    box: str = ""
    sources: dict[str, str] = {}
    proven: dict[str, str] = {}


class Site(SiteFile, frozen=True):
    """A site as jobs are planned on it.

    Attributes:
        scheduler_settings: its scheduler's section of the file.
    """

    scheduler_settings: dict[str, Any] = {}

    @property
    def settings(self) -> SchedulerSettings:
        """How jobs are requested from its scheduler."""
        return settings_of(self.scheduler, self.scheduler_settings)

    @property
    def document(self) -> dict[str, Any]:
        """As a site file has it."""
        values: dict[str, Any] = msgspec.to_builtins(self)
        section, settings = SCHEDULERS[self.scheduler].section, values.pop("scheduler_settings")
        return values | ({section: settings} if section else {})
