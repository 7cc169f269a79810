"""The records that a job leaves, as ``gpu_runner_inside/schema.json`` defines them; what the verdict needs of each.

The launcher and the programs write them with the standard library alone; unknown fields are for people and later
versions, and are left alone here.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from runner.model.request import RunArm

Version = Literal["1", "2"]
# What no count and no time of a job exceeds: beyond it a record is damaged, and sums of it would overflow. NaN is out.
Count = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
Counter = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]  # of a device: bytes of a fabric pass 2**53 within days
DEVICE_UUIDS = ("GPU-", "MIG-")  # what one begins with; a framework that knows none says ``index-N``
Seconds = Annotated[float, msgspec.Meta(ge=0.0, le=1e11)]
Rate = Annotated[float, msgspec.Meta(ge=0.0, le=1e20)]
Difference = Annotated[float, msgspec.Meta(ge=-1e11, le=1e11)]  # of two readings of a clock that may be set


class StartRecord(msgspec.Struct, frozen=True):
    """``ranks/N.start.json``: the launcher has begun, and knows its world.

    Attributes:
        size: ranks in the world, as the task starter says.
        met: the ranks have found each other.
        device_index: index of the rank's device among those visible to the node's tasks; None without one.
        device_uuid: of its GPU, where the driver says.
        token: what tells the rank's job step from any other.
        plan_sha256: of the plan.json that the rank saw.
        environment: recorded variables of the task, name -> value.
        program_sha256: of rank 0's program as it started; of runs without ``Inputs.sources``.
        device_ports: ports of the fabric near its device. cpus: that it may run on, in the kernel's list format.
        time_s: when the launcher began, Unix time.
        node_name: the scheduler's name of the node; None where it gives none.
        boot_id: of the node's kernel (random(4)).
        clock_offset_s: what must be added to this node's wall clock to get rank 0's, as measured when the rank joined;
            clock_error_s: how wrong that may be. None where the launchers did not meet.
    """

    schema: Version
    rank: Count
    size: Count
    local_rank: Count
    local_size: Count
    node_rank: Count
    host: str
    met: bool
    device_kind: Literal["cuda", "cpu"]
    device_index: Count | None = None
    device_uuid: str | None = None
    cuda_visible_devices: str | None = None
    job_id: str | None = None
    token: str | None = None
    plan_sha256: str | None = None
    program_sha256: str | None = None
    environment: dict[str, str] = {}
    device_ports: tuple[str, ...] = ()
    cpus: str = ""
    node_name: str | None = None
    boot_id: str | None = None
    time_s: Seconds | None = None
    clock_offset_s: Difference | None = None
    clock_error_s: Seconds | None = None


class Membership(msgspec.Struct, frozen=True):
    """The world that a process was in: by what (``torch``, ``jax``, ``horovod``, ``mpi``), its rank there, its size."""

    kind: str
    rank: Count
    size: Count


class Inputs(msgspec.Struct, frozen=True):
    """What a rank's program ran with; values and contents are digests.

    Attributes:
        given: variables that it was started with, by their names.
        variables: where the process with the figure began with others; None where it had none.
        cpus: processors that this process may run on.
        sources: of rank 0: files that its command names or its recipe has: content as it started, empty where it was
            not there yet, and whether it was written since.
        read: of rank 0: files of the program's, by their names: content as first read, empty of a large one, which is
            data; time of change in Unix time.
        written: of rank 0: files that it wrote, or that were changed while it ran.
        modules: of rank 0: of the program's own, by the names of their files; of libraries, too.
        installed: of rank 0: packages, and folders of their libraries: digests, of many by size and time of change.
    """

    given: dict[str, str] = {}
    variables: dict[str, str | None] = {}
    cpus: Count = 0
    sources: dict[str, tuple[str, bool]] = {}
    read: dict[str, tuple[str, float]] = {}
    written: tuple[str, ...] = ()
    modules: dict[str, str] = {}
    installed: dict[str, dict[str, str]] = {}


class ExitRecord(msgspec.Struct, frozen=True):
    """``ranks/N.exit.json``: how a rank ended.

    Attributes:
        status: the launcher's exit status: 0 only if the program exited with 0.
        exit_code, signal: the program's; both None where it never ran.
        error: the launcher's own failure (``world-mismatch``, ``rendezvous-timeout`` ...), None if it had none.
        started_s, ended_s: of the launcher, Unix time.
        master_port_used: a connection with MASTER_PORT was seen; None where it could not be.
        rendezvous_values, rendezvous_ranks: of rank 0: values that programs left at its rendezvous, and how many ranks'
            programs came to it to form Horovod's world.
        worlds: of the program's processes, as far as they were seen.
        program: what its program ran with; None where it was not recorded.
        program_started_monotonic_s, ended_monotonic_s: on the node's monotonic clock, which the program reads, too.
    """

    schema: Version
    rank: Count
    host: str
    status: Count
    ended_s: Seconds
    max_rss_bytes: Count
    exit_code: Count | None = None
    signal: Count | None = None
    error: str | None = None
    message: str = ""
    master_port_used: bool | None = None
    rendezvous_values: Count | None = None
    rendezvous_ranks: Count | None = None
    signals_forwarded: tuple[Count, ...] = ()
    worlds: tuple[Membership, ...] = ()
    program: Inputs | None = None
    started_s: Seconds | None = None
    program_started_monotonic_s: Seconds | None = None
    ended_monotonic_s: Seconds | None = None


class ArmRecord(msgspec.Struct, frozen=True):
    """One window of a run whose arms took turns.

    Attributes:
        arm: of the window. group_steps, ends_s, ends_checksum: as those of a report.
        began_monotonic_s: the common start on the node's monotonic clock.
        compute_s: own computing of each step, or of every second, third ... of many, the same on every rank, seconds;
            empty where it is unknown.
    """

    arm: RunArm
    group_steps: Count
    began_monotonic_s: Seconds
    ends_s: tuple[Seconds, ...]
    ends_checksum: str
    compute_s: tuple[Difference, ...] = ()


class Report(msgspec.Struct, frozen=True):
    """``ranks/N.report.json``: what the program's framework says of this rank, and what it measured.

    Attributes:
        world_rank, world_size, world_local_rank: as the framework (Horovod) reports them.
        gradient_checksum: of the gradients of this rank before the first allreduce.
        parameter_checksum: of the parameters after the last step, running statistics left out.
        parameters_moved: they differ from the first ones.
        onehot_ok: an allreduce of one-hot vectors gave all ones.
        batch_size: images per step; group_steps: timed steps between two synchronisations of the device.
        warmup_steps, warmup_s: before the window.
        window_began_monotonic_s: the common start on the node's monotonic clock.
        ends_s: end of each group of timed steps, seconds after the common start; ends_checksum: of these numbers.
        steps, elapsed_s: what the program says of them; compared.
        compute_quarters_p50_s: medians of the rank's compute time of a step in each quarter of the window, seconds.
        allreduce_bytes_per_step: given to allreduces in a step, after compression; None where that is not known.
        reduced_gradients_error: how far the reduced gradients of a step were from the mean of the ranks' own, relative
            to how far single ranks' are; None where they were not compared.
        reduction_unseen: a meter could not compare them, though each rank has the whole parameters.
        inputs_checksum: of what the model was given in the first forward pass that a meter saw.
        framework_version, horovod_version, cuda_version, device_name: as the framework says; image_checksum: of the
            image's description. None where unknown.
        instrumentation_s: of the window, what the host spent in calls that only measure; None where unknown.
        token: of the job step that the program ran in; None where its launcher said none.
        nccl_built: its Horovod has NCCL; gradients_device: kind of the device of the gradients that it reduced.
        meter: what counted the steps of a user's program: ``script`` or ``hook``; None of a recipe.
        unit: what a batch is counted in: samples, tokens or steps; None: images.
        synchronisation: what there is to prove it: ``parameters`` (they must be equal), ``not-examined`` (they are
            divided among the ranks: ``sharded`` says by what), ``not-given`` (the meter was given none); None as
            ``parameters``.
        parameters_finite: all are, after the last step; where no loss is known.
        group_samples: what the rank took in each group, in ``unit``; empty: the batch in each step.
        marked_monotonic_s: a meter's clock before it marked the window's begin for the node's watcher, and after it
            marked the end; empty of a recipe.
        forwards_seen: steps of the window with a forward pass in training or, if any, of its optimizer; None: not seen.
        trained_beside: values of parameters that an optimizer stepped in the warm-up, and no proof covers.
        steps_beside: of the window, steps of optimizers of other parameters than the model's, or by turns; and one more
            where other processes of this rank trained.
        trained: digests of the model (``modules``, ``parameters``, also at the end), ``optimizer``, ``precision``,
            shapes of the ``inputs``, ``compiled``, ``activation checkpointing``; of the window
            ``mean size of a sample`` (numbers in the inputs) and ``forward passes of a step``; of what is unknown none,
            or empty.
        data_parallel: DDP, FSDP, DeepSpeed or Horovod of all ranks was seen, which give each a batch of its own; None:
            unknown.
        samples_seen: of the window, the first dimensions of what the model was given, summed; None: not known.
        batch_seen: the batch is the first dimension of what the model was given, not the stated one.
        batch_stated: what the script or --meter-batch states of a step; None: nothing.
        waiting_s: of each group, seconds between the end of a step and the next forward pass; empty where not seen.
        longest_waiting_s: the longest of these waits, seconds.
        flops_per_sample, peak_flops: of the model for one unit, and of a device in a second, as the program stated.
        arm: that the window is of. arms: all windows in their order, this one too; empty where there is but one arm.
    """

    schema: Version
    rank: Count
    framework: str
    world_rank: Count
    world_size: Count
    world_local_rank: Count
    device_kind: Literal["cuda", "cpu"]
    device_uuid: str | None = None
    gradient_checksum: str | None = None
    parameter_checksum: str | None = None
    parameters_moved: bool | None = None
    onehot_ok: bool | None = None
    loss_finite: bool | None = None
    batch_size: Count | None = None
    group_steps: Count | None = None
    warmup_steps: Count | None = None
    warmup_s: Seconds | None = None
    window_began_monotonic_s: Seconds | None = None
    ends_s: tuple[Seconds, ...] = ()
    ends_checksum: str | None = None
    steps: Count | None = None
    elapsed_s: Seconds | None = None
    compute_quarters_p50_s: tuple[Difference, ...] = ()
    allreduce_bytes_per_step: Count | None = None
    reduced_gradients_error: Rate | None = None
    reduction_unseen: bool = False
    inputs_checksum: str | None = None
    framework_version: str | None = None
    horovod_version: str | None = None
    cuda_version: str | None = None
    device_name: str | None = None
    image_checksum: str | None = None
    instrumentation_s: Seconds | None = None
    token: str | None = None
    nccl_built: bool | None = None
    gradients_device: str | None = None
    meter: Literal["script", "hook"] | None = None
    unit: Literal["samples", "tokens", "steps"] | None = None
    synchronisation: Literal["parameters", "not-examined", "not-given"] | None = None
    sharded: str = ""
    parameters_finite: bool | None = None
    group_samples: tuple[Count, ...] = ()
    marked_monotonic_s: tuple[Seconds, ...] = ()
    forwards_seen: Count | None = None
    trained_beside: Count = 0
    steps_beside: Count = 0
    data_parallel: bool | None = None
    trained: dict[str, str] = {}
    samples_seen: Count | None = None
    batch_seen: bool = False
    batch_stated: Count | None = None
    waiting_s: tuple[Seconds, ...] = ()
    longest_waiting_s: Seconds | None = None
    flops_per_sample: Rate | None = None
    peak_flops: Rate | None = None
    arm: RunArm = "full"
    arms: tuple[ArmRecord, ...] = ()


class MeterRecord(msgspec.Struct, frozen=True):
    """``ranks/N.meter.json``: how far the meter of a user's program came.

    Attributes:
        source: what counts the steps: ``script`` or ``hook``.
        state: ``begun`` (in the warm-up), ``window``, ``measured`` or ``given-up``.
        steps: that it had seen when it wrote this.
        why: it gave up, or what it has to say of a figure that is not judged; empty for nothing.
    """

    schema: Version
    rank: Count
    source: Literal["script", "hook"]
    state: Literal["begun", "window", "measured", "given-up"]
    steps: Count
    why: str = ""
    token: str | None = None


class Port(msgspec.Struct, frozen=True):
    """A port of a fabric's adapter, or an interface of IP, and its counters at one moment.

    Attributes:
        name: ``mlx5_0:1``, ``cxi0``, ``eth0``.
        for_ranks: a port that ranks use where nothing else is chosen.
        virtual: a virtual function: its counters are not the port's.
        sent_bytes, received_bytes: since the driver started; None where they cannot be read.
        ip_sent_bytes, ip_received_bytes: of these, IP over the fabric.
        errors: the kernel's names -> counts.
    """

    name: str
    kind: Literal["infiniband", "roce", "cxi", "efa", "interface"]
    active: bool
    for_ranks: bool
    virtual: bool
    sent_bytes: Counter | None
    received_bytes: Counter | None
    ip_sent_bytes: Counter = 0
    ip_received_bytes: Counter = 0
    wait_ticks: Counter | None = None
    errors: dict[str, Counter] = {}


class PortReading(msgspec.Struct, frozen=True):
    """All ports of a node at one moment of its monotonic clock."""

    monotonic_s: Seconds
    ports: tuple[Port, ...]


class GpuState(msgspec.Struct, frozen=True):
    """A GPU at one end of the window. None: not visible.

    Attributes:
        energy_j: since the driver was loaded.
        processes_foreign: processes of others that compute there.
    """

    uuid: str | None = None
    power_limit_w: Rate | None = None
    memory_celsius: Counter | None = None
    energy_j: Rate | None = None
    ecc_corrected: Counter | None = None
    ecc_uncorrected: Counter | None = None
    remapped_rows_pending: bool | None = None
    pcie_generation: Counter | None = None
    pcie_width: Counter | None = None
    nvlinks: tuple[bool, ...] | None = None
    processes_foreign: Counter | None = None


class Processors(msgspec.Struct, frozen=True):
    """The processors of a node at one end of the window: totals since boot, seconds. None: not visible."""

    busy_s: Seconds | None = None
    steal_s: Seconds | None = None
    own_s: Seconds | None = None
    throttles: Counter | None = None
    quota_throttled_s: Seconds | None = None


class WindowEnd(PortReading, frozen=True):
    """One end of the window on one node."""

    gpus: tuple[GpuState, ...] = ()
    processors: Processors = Processors()


class GpuSummary(msgspec.Struct, frozen=True):
    """A GPU over the window.

    Attributes:
        samples: readings in the window, one a second. power_w_min, power_w_max: of those.
        throttled: reason -> samples that show it.
        throttle_known: the driver tells whether it throttles.
    """

    uuid: str | None = None
    samples: Counter = 0
    power_limit_default_w: Rate | None = None
    pcie_generation_max: Counter | None = None
    pcie_width_max: Counter | None = None
    mig: bool | None = None
    sm_clock_mhz_min: Rate | None = None
    sm_clock_mhz_max: Rate | None = None
    sm_clock_mhz_mean: Rate | None = None
    power_w_min: Rate | None = None
    power_w_max: Rate | None = None
    throttled: dict[str, Counter] = {}
    throttle_known: bool = False


class GpuLoad(msgspec.Struct, frozen=True):
    """A GPU while the job runs, by NVML. None: not visible.

    Attributes:
        busy_percent: of the time, in which a kernel ran; it and ``power_w`` are means of 30 s.
    """

    uuid: str | None = None
    busy_percent: Rate | None = None
    memory_used_bytes: Counter | None = None
    memory_bytes: Counter | None = None
    power_w: Rate | None = None


class NodeRecord(msgspec.Struct, frozen=True):
    """``ranks/N.node.json``: what the watcher of a node's first launcher read.

    Attributes:
        rank: of that launcher. token: of its job step.
        quiet: readings from the start on, while the program imports its framework.
        window_begin, window_end: as the program marked them; None where it marked none.
        arms: of each further window, by its place in the run, the mean SM clock of each GPU, MHz.
        xids: errors of GPUs that the driver reported meanwhile.
        faults: what could not be read, and why.
        time_s: Unix time of writing. load: of each of ``gpus``, in 30 s before that while the job ran.
    """

    schema: Version
    node_rank: Counter
    rank: Counter
    host: str
    token: str
    quiet: tuple[PortReading, ...] = ()
    window_begin: WindowEnd | None = None
    window_end: WindowEnd | None = None
    gpus: tuple[GpuSummary, ...] = ()
    arms: dict[str, tuple[Rate | None, ...]] = {}
    driver: str = ""
    xids: tuple[Counter, ...] = ()
    faults: tuple[str, ...] = ()
    time_s: Seconds = 0.0
    load: tuple[GpuLoad, ...] = ()

    def is_by(self, start: StartRecord | None) -> bool:
        """Whether the launcher that left this start record wrote it: the first of its node, in one job step."""
        own = (self.token, self.node_rank, self.host, 0)
        return start is not None and own == (start.token, start.node_rank, start.host, start.local_rank)


class Result(msgspec.Struct, frozen=True):
    """``result.json``: what rank 0 says of the whole run. Compared with the ranks' own records, never believed.

    Attributes:
        size: ranks in the framework's world.
        preliminary_images_per_s: of the whole window, nothing cut; None where the program's own proof does not hold.
        window_s: latest end less the common start, seconds.
        demonstration: it was asked for as a demonstration.
        proof_reasons: why the program finds its own figure not proven.
    """

    schema: Version
    size: Count
    window_s: Seconds
    preliminary_images_per_s: Rate | None = None
    demonstration: bool = False
    proof_reasons: tuple[str, ...] = ()


class AllreduceTimes(msgspec.Struct, frozen=True):
    """A rank's times for one message size: seconds of each round of so many allreduces."""

    bytes: Annotated[int, msgspec.Meta(ge=4, le=2**53)]
    iterations: Annotated[int, msgspec.Meta(ge=1, le=2**53)]
    rounds_s: tuple[Annotated[float, msgspec.Meta(gt=0.0, le=1e11)], ...]


class AllreduceRecord(msgspec.Struct, frozen=True):
    """``ranks/N.allreduce.json``: the raw times of the recipe ``allreduce`` on this rank.

    Attributes:
        through: ``horovod`` or ``torch``. operation: of it: ``NCCL``, ``MPI``, ``Gloo``.
        size: ranks, as the framework says.
    """

    schema: Version
    rank: Count
    through: str
    operation: str
    size: Count
    device_kind: Literal["cuda", "cpu"]
    times: tuple[AllreduceTimes, ...]


class ProvingRecord(msgspec.Struct, frozen=True):
    """``ranks/N.proving.json``: what a step of ``prove`` saw on this rank.

    Attributes:
        device_kind: where the step computed.
        facts: of this step; runner/proving/facts.py knows them.
    """

    schema: Version
    rank: Count
    step: str
    device_kind: Literal["cuda", "cpu"]
    facts: dict[str, Any]
