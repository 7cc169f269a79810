"""The result of a check of a plan."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

import msgspec

from runner.model.backends import SchedulerSettings, settings_of
from runner.model.image import ImageFacts
from runner.model.request import Caches, Mount, RunArm, Transport, Wireup, World


class Finding(msgspec.Struct, frozen=True):
    """One finding.

    Attributes:
        code: stable name, lower case with dashes; ``--force CODE`` names it.
        severity: ``refuse`` stops a submission (exit 3), ``warn`` does not.
        forced: it would have refused, and the user has overridden it.
        what: what is wrong.
        fix: what to do.
        who: who can fix it.
    """

    code: str
    severity: Literal["refuse", "warn"]
    what: str
    fix: str
    who: Literal["user", "administrator"] = "user"
    forced: bool = False


_MOST_RANKS = 1 << 20
_MEASURED_WAIT_S = 60
RESULTS = "/results"  # where the run directory is seen by every rank, in every container
COPY = "code"  # in the run directory: the copy of the user's tracked files
WORKSPACE = "/workspace"  # where the directory of a user's own program is seen; NGC images start there


def is_copied(plan: Plan) -> bool:
    """Whether the user's program starts in a copy of its files, in the run directory."""
    return f"{plan.workdir}/".startswith(f"{RESULTS}/{COPY}/")


class PlannedImage(msgspec.Struct, frozen=True):
    """The image a job will use, pinned.

    Attributes:
        reference: the name that the user or recipe gave.
        digest: content digest (``sha256:...``): of the registry's manifest, or the engine's id of an image that came
            from no registry; empty where the image was given as a file.
        path: the image's file on the cluster's file system; empty where the runtime takes a reference.
        mpi: the MPI that Horovod in the image was built with; empty where unknown.
        size_bytes: of that file; 0 where unknown. sha256: of that file, hex; empty where unknown.
        about: its own description of itself; None where it has none.
    """

    reference: str
    digest: str
    path: str
    mpi: Literal["openmpi", "mpich", "none", ""] = ""
    size_bytes: int = 0
    sha256: str = ""
    about: ImageFacts | None = None

    @property
    def pinned(self) -> str:
        """``REFERENCE@DIGEST``: these bytes and no others; else a file's path, or a name."""
        if not self.digest:
            return self.path or self.reference
        return f"{self.reference}@{self.digest}" if "sha256:" not in self.reference else self.reference


class StepNodes(msgspec.Struct, frozen=True):
    """What a step gets of an existing allocation.

    Attributes:
        nodes: names, in the order of ``Plan.tasks_per_node``.
        overlap: it is asked for from within another step, which holds the resources, and must be shared with.
        job_id: the scheduler's number of the allocation.
    """

    nodes: tuple[str, ...]
    overlap: bool = False
    job_id: str = ""


class LaunchPlace(msgspec.Struct, frozen=True):
    """Where in a study's one allocation a launch runs. It has all CPUs, GPUs and memory that the allocation has of its
    nodes, whatever its size, so that the rank of a GPU has the same processors and sees the same GPUs in each.

    Attributes:
        first_node: the first of its nodes, from 0, in the order that the allocation's own script makes.
        first_gpu: that local rank 0 has, from 0; the others follow.
        node_gpus: GPUs that the allocation has of each node.
    """

    first_node: int = 0
    first_gpu: int = 0
    node_gpus: int = 1


class PlannedPython(msgspec.Struct, frozen=True):
    """The Python that each node's ``python3`` must be: its environment's directory, and its version."""

    prefix: str
    version: str


class ListedHosts(msgspec.Struct, frozen=True):
    """Nodes that no scheduler gives out: the user's own ssh reaches them.

    Attributes:
        names: as ssh takes them, in the order of ``Plan.tasks_per_node``.
        config: the configuration file for ssh; empty for the user's default.
        programs: what each must have in PATH; modules: what the ``python3`` of each must be able to import.
    """

    names: tuple[str, ...]
    config: str = ""
    programs: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()


class Starter(msgspec.Struct, frozen=True):
    """A program that starts ranks, as a job's program or its shell script calls it.

    Attributes:
        name: in the table of starters (``runner.planning.starters``).
        arguments: what follows it; in a script NUL stands for what only its shell could read.
        at: place of the first argument in the program, or in the script's command.
        call: the words by which a shell finds it: ``python3 -m torch.distributed.run``; empty behind another program,
            or where it has a path.
        line: of the script; 0 where the program itself calls it.
        is_choice: another may run in its place, as in the branches of an ``if``.
        visible: GPUs that the script's CUDA_VISIBLE_DEVICES leaves it; None for all.
    """

    name: str
    arguments: tuple[str, ...]
    at: int = 0
    call: tuple[str, ...] = ()
    line: int = 0
    is_choice: bool = False
    visible: int | None = None


class Plan(msgspec.Struct, frozen=True):
    """A job, decided. A pure function of recipe, site, request and image.

    Attributes:
        tasks_per_node: ranks on each node, in node order; its length is the number of nodes.
        gpus_per_node: GPUs asked for on every node (the most that any node needs).
        cpus_per_task: schedulable CPUs of each rank.
        divides_cpus: the script requests no number of CPUs, and divides those of its whole nodes among their ranks.
        whole_nodes: the job has all GPUs of its nodes, so that no other job computes there.
        memory_mb: memory per node, MiB; 0 means all of it.
        memory_per_cpu_mb: a schedulable CPU's share of a node's memory, MiB.
        queue: queue, partition or QOS; None leaves the choice to the scheduler.
        scheduler_settings: how the site's scheduler is asked: its section of the site file.
        mpi: value of ``srun --mpi``; None leaves the option out.
        directives: further scheduler options, name -> value, in order.
        load: lines that make the runtime available, each an argument list.
        modules: modules of the container runtime's own.
        host_paths: containers show the run directory and the program's own under the paths of the host.
        library_path: put before the image's own LD_LIBRARY_PATH.
        library_variable: whose value the script puts behind ``library_path``; empty for none.
        runtime_options: further options of the container runtime's own.
        mounts: besides the run directory, which is always at RESULTS.
        env: environment of every rank, sorted by name; a later source (site < recipe < user) has won.
        unset: variables that the user takes away from every rank, whoever has set them.
        program: the argument list below the launcher.
        wireup: how ranks find each other.
        starters: programs that start ranks in it: the one that the program begins with, or those of its script.
        unknown_starters: programs of which is only known that they may start ranks.
        world: how many devices shall be in one world; None where none is asked for.
        device: what each rank must compute on.
        transport: class of transport that is planned between nodes; None where the site does not say.
        samples_per_step: samples (images) of a rank in a step, as passed to the program; None where unknown.
        arms: between which the program takes turns, the one that its figure is of last.
        demonstration: why its figures are no performance claim; empty where they are.
        workdir: where the program starts, as seen in the container.
        existing_allocation: the part of one that the job is a step of (``held`` in plan.json); None where the job
            requests its own.
        launch: its place in the allocation of a study; None for any other job.
        hosts: its nodes, where there is no scheduler; None where one gives them out.
        python: of an environment that the user made, for comparing at the start; None where nothing is compared.
        bind: whether ranks are bound to the processors near their GPUs, and to the ports of the fabric.
        stage: directory of each node's own to which the image is copied first; empty for no copy.
        umask: of the program: the submitting user's. trust: RUNNER_TRUST, by which the job, too, asks whose a place is.
        owners: directories of the program, its start and its modules that others could make anew, each with its owner;
            -1 for one that is not there yet, and may only become this user's.
        caches: where the program's caches are.
        limit_is_default: ``walltime_s`` was not requested, and is the site's.
        swept: name and value of what a sweep gave the job.
        attempt: its number in a chain (``--until-done``), from 1; 0 where it is in none. attempts: of that, at most.
    """

    job_name: str
    recipe: str
    framework: str
    result: Literal["throughput", "none", "if-left"]
    site: str
    scheduler: str
    runtime: str
    tasks_per_node: tuple[int, ...]
    gpus_per_node: int
    gpu_type: str
    cpus_per_task: int
    memory_mb: int
    whole_nodes: bool
    walltime_s: int
    queue: str | None
    account: str | None
    mpi: str | None
    directives: tuple[tuple[str, str], ...]
    image: PlannedImage
    mounts: tuple[Mount, ...]
    env: tuple[tuple[str, str], ...]
    program: tuple[str, ...]
    wireup: Wireup
    device: Literal["cuda", "cpu"]
    demonstration: str
    transport: Transport | None = None
    samples_per_step: int | None = None
    arms: tuple[RunArm, ...] = ("full",)
    memory_per_cpu_mb: int = 0
    scheduler_settings: dict[str, Any] = {}
    load: tuple[tuple[str, ...], ...] = ()
    modules: tuple[str, ...] = ()
    library_path: str = ""
    library_variable: str = ""
    runtime_options: tuple[str, ...] = ()
    workdir: str = f"{RESULTS}/recipe"
    existing_allocation: StepNodes | None = msgspec.field(default=None, name="held")
    stage: str = ""
    umask: int = 0o022
    trust: str = ""
    owners: tuple[tuple[str, int], ...] = ()
    caches: Caches = "shell"
    divides_cpus: bool = False
    host_paths: bool = False
    unset: tuple[str, ...] = ()
    hosts: ListedHosts | None = None
    bind: Literal["auto", "none"] = "auto"
    python: PlannedPython | None = None
    launch: LaunchPlace | None = None
    starters: tuple[Starter, ...] = ()
    unknown_starters: tuple[Starter, ...] = ()
    limit_is_default: bool = False
    world: World | None = None
    swept: tuple[tuple[str, str], ...] = ()
    attempt: int = 0
    attempts: int = 0

    @property
    def settings(self) -> SchedulerSettings:
        """How the job is requested from its scheduler."""
        return settings_of(self.scheduler, self.scheduler_settings)

    @property
    def started_by(self) -> str:
        """What starts the script: the scheduler, or this machine where the job is a step of an existing allocation."""
        return "local" if self.existing_allocation else self.scheduler

    @property
    def wait_s(self) -> int:
        """How long the other ranks may go on after the first has ended well, seconds; 0 for as long as they need.

        The ranks of a measurement end together. In a user's program, one may evaluate or save alone.
        """
        if self.settings.wait_s is not None:
            return self.settings.wait_s
        return _MEASURED_WAIT_S if self.result == "throughput" else 0

    def __post_init__(self) -> None:
        """Of a run directory's file, each rank is looked for. Raises ValueError."""
        if self.tasks > _MOST_RANKS:
            raise ValueError(f"more than {_MOST_RANKS} ranks")

    @property
    def nodes(self) -> int:
        """Number of nodes."""
        return len(self.tasks_per_node)

    @property
    def gpus_per_task(self) -> int:
        """GPUs of each rank: one, or all of the node where the program starts processes of its own."""
        ranks = max(self.tasks_per_node, default=0)
        return self.gpus_per_node // ranks if ranks else 0

    @property
    def gpus_by_node(self) -> tuple[int, ...]:
        """GPUs of the ranks on each node."""
        return tuple(count * self.gpus_per_task for count in self.tasks_per_node)

    @property
    def tasks(self) -> int:
        """Number of ranks in the world."""
        return sum(self.tasks_per_node)

    @property
    def gpus(self) -> int:
        """GPUs of all ranks; on a site without GPUs, one rank stands for a GPU."""
        return self.tasks * self.gpus_per_task

    @property
    def occupied_gpus(self) -> int:
        """How many GPUs the job takes away from others: all of its nodes where it has whole ones."""
        return self.nodes * self.gpus_per_node if self.whole_nodes else self.gpus

    @property
    def most_gpu_hours(self) -> float:
        """What the job costs if it runs until its time limit."""
        return self.occupied_gpus * self.walltime_s / 3600.0


class PlanRecord(Plan, frozen=True):
    """A plan as a run directory keeps it (``plan.json``).

    Attributes:
        forced: codes of the checks that refused the plan and were overridden.
    """

    forced: tuple[str, ...] = ()


def upgraded(document: Any) -> Any:
    """A ``plan.json`` of any version as plans are now: how the scheduler was asked had a key for each scheduler."""
    if not isinstance(document, dict) or "scheduler_settings" in document:
        return document
    return document | {"scheduler_settings": document.get(str(document.get("scheduler")), {})}


def record_of(plan: Plan, findings: Iterable[Finding]) -> PlanRecord:
    """The plan with what its checks, which came after it, add to it."""
    values = {name: getattr(plan, name) for name in Plan.__struct_fields__}
    return PlanRecord(**values, forced=tuple(finding.code for finding in findings if finding.forced))
