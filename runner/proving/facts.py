"""What the steps of recipes/prove leave, typed. A record of another shape is no evidence."""

from __future__ import annotations

import msgspec

from runner.model.records import Count, Seconds


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
