"""The records that a job leaves, as ``gpu_runner_inside/schema.json`` defines them; what the verdict needs of each.

The launcher and the programs write them with the standard library alone; unknown fields are for people and later
versions, and are left alone here.
"""

from __future__ import annotations

from typing import Literal

import msgspec

Version = Literal["1", "2"]


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
        node_name: the scheduler's name of the node; None where it gives none.
        boot_id: of the node's kernel (random(4)).
        clock_offset_s: what must be added to this node's wall clock to get rank 0's, as measured when the rank joined;
            clock_error_s: how wrong that may be. None where the launchers did not meet.
    """

    schema: Version
    rank: int
    size: int
    local_rank: int
    local_size: int
    node_rank: int
    host: str
    met: bool
    device_kind: Literal["cuda", "cpu"]
    device_index: int | None = None
    device_uuid: str | None = None
    cuda_visible_devices: str | None = None
    job_id: str | None = None
    token: str | None = None
    plan_sha256: str | None = None
    environment: dict[str, str] = {}
    node_name: str | None = None
    boot_id: str | None = None
    clock_offset_s: float | None = None
    clock_error_s: float | None = None


class ExitRecord(msgspec.Struct, frozen=True):
    """``ranks/N.exit.json``: how a rank ended.

    Attributes:
        status: the launcher's exit status: 0 only if the program exited with 0.
        exit_code, signal: the program's; both None where it never ran.
        error: the launcher's own failure (``world-mismatch``, ``rendezvous-timeout`` ...), None if it had none.
        started_s, ended_s: of the launcher, Unix time.
        program_started_monotonic_s, ended_monotonic_s: on the node's monotonic clock, which the program reads, too.
    """

    schema: Version
    rank: int
    host: str
    status: int
    ended_s: float
    max_rss_bytes: int
    exit_code: int | None = None
    signal: int | None = None
    error: str | None = None
    message: str = ""
    signals_forwarded: tuple[int, ...] = ()
    started_s: float | None = None
    program_started_monotonic_s: float | None = None
    ended_monotonic_s: float | None = None


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
        ends_s: end of each group of timed steps, seconds after the common start.
        steps, elapsed_s: what the program says of them; compared.
        compute_quarters_p50_s: medians of the rank's compute time of a step in each quarter of the window, seconds.
        nccl_built: its Horovod has NCCL; gradients_device: kind of the device of the gradients that it reduced.
    """

    schema: Version
    rank: int
    framework: str
    world_rank: int
    world_size: int
    world_local_rank: int
    device_kind: Literal["cuda", "cpu"]
    device_uuid: str | None = None
    gradient_checksum: str | None = None
    parameter_checksum: str | None = None
    parameters_moved: bool | None = None
    onehot_ok: bool | None = None
    loss_finite: bool | None = None
    batch_size: int | None = None
    group_steps: int | None = None
    warmup_steps: int | None = None
    warmup_s: float | None = None
    window_began_monotonic_s: float | None = None
    ends_s: tuple[float, ...] = ()
    steps: int | None = None
    elapsed_s: float | None = None
    compute_quarters_p50_s: tuple[float, ...] = ()
    nccl_built: bool | None = None
    gradients_device: str | None = None


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
    size: int
    window_s: float
    preliminary_images_per_s: float | None = None
    demonstration: bool = False
    proof_reasons: tuple[str, ...] = ()
