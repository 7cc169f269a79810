"""What the steps of recipes/prove leave, typed. A record of another shape is no evidence."""

from __future__ import annotations

import msgspec

from runner.model.records import Count, Rate, Seconds


class SeenGpu(msgspec.Struct, frozen=True):
    """A GPU, as NVML names it. ``mig``: it is cut into slices; None where that is unknown."""

    uuid: str | None
    name: str | None
    mig: bool | None = None


class SeenDevice(msgspec.Struct, frozen=True):
    """A device, as torch sees it. ``computes``: a product of matrices was right on it."""

    uuid: str | None
    name: str
    capability: str
    memory_bytes: Count
    computes: bool


class DevicesFacts(msgspec.Struct, frozen=True):
    """Of the step ``devices``, on one rank."""

    driver: str
    nvml_problem: str
    gpus: tuple[SeenGpu, ...]
    devices: tuple[SeenDevice, ...]
    torch_version: str
    cuda_version: str | None
    nccl_version: str | None
    architectures: tuple[str, ...]
    horovod_version: str
    horovod_nccl: bool


class Sum(msgspec.Struct, frozen=True):
    """One size of allreduce. ``right``: every sum was exact; ``on_device``: the result stayed on the rank's device."""

    bytes: Count
    right: bool
    on_device: bool
    median_s: Seconds


class AllreduceFacts(msgspec.Struct, frozen=True):
    """Of the step ``allreduce``, on one rank. ``hooked_gradients``: allreduces that hooks began in a backward pass."""

    size: Count
    nccl_built: bool
    sums: tuple[Sum, ...]
    hooked_gradients: Count
    weights_equal: bool
    weights_moved: bool


class Slice(msgspec.Struct, frozen=True):
    """A part of a GPU (MIG). ``problem``: why nothing could be computed on it; empty where something was."""

    uuid: str
    problem: str = ""
    devices: Count = 0
    memory_bytes: Count = 0
    computes: bool = False


class SlicesFacts(msgspec.Struct, frozen=True):
    """Of the step ``slices``."""

    slices: tuple[Slice, ...]


class ClocksFacts(msgspec.Struct, frozen=True):
    """Of the step ``clocks``: the length of each stretch by the device's events, and by the host's clock."""

    event_s: tuple[Seconds, ...]
    wall_s: tuple[Seconds, ...]


class RooflineFacts(msgspec.Struct, frozen=True):
    """Of the step ``roofline``.

    Attributes:
        products: floating-point operations a second of a product of matrices, by precision.
        copy_bytes_per_s: read and written, both counted.
        flop_per_image: of a training step, by image; None where torch cannot count them.
    """

    products: dict[str, Rate]
    copy_bytes_per_s: Rate
    flop_per_image: Count | None
    model: str
    image_px: Count


class SyntheticFacts(msgspec.Struct, frozen=True):
    """Of the step ``synthetic``: the rate of all ranks together."""

    images_per_s: Rate
    size: Count
    batch_size: Count
