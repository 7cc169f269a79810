"""The driver, the GPUs, and what torch and Horovod make of them."""

from __future__ import annotations

import os
from typing import Any

import horovod
import horovod.torch as hvd
import torch
from gpu_runner_inside.benchmark.cuda_uuid import device_uuid
from gpu_runner_inside.node.nvml import Nvml, NvmlError
from place import kind_of
from share import of_rank


def run(wanted: str, *, short: bool) -> tuple[str, dict[str, Any]]:  # noqa: ARG001 -- as every step
    """What is here; ``short`` makes no difference."""
    kind = kind_of(wanted)
    driver, gpus, problem = "", [], ""
    try:
        nvml = Nvml()
        driver, gpus = nvml.driver, [nvml.identity(device) for device in nvml.devices]
    except NvmlError as error:
        problem = str(error)
    count = torch.cuda.device_count() if kind == "cuda" and torch.cuda.is_available() else 0
    return kind, {
        "driver": driver,
        "nvml_problem": problem,
        "gpus": [{"uuid": each["uuid"], "name": each["name"], "mig": each["mig"]} for each in gpus],
        "devices": [_device(index) for index in of_rank(count, os.environ)],
        "cuda_visible_devices": os.environ.get("CUDA_VISIBLE_DEVICES"),
        "torch_version": torch.__version__,
        "cuda_version": torch.version.cuda,
        "nccl_version": ".".join(map(str, torch.cuda.nccl.version())) if count else None,
        "architectures": torch.cuda.get_arch_list() if count else [],
        "horovod_version": horovod.__version__,
        "horovod_nccl": bool(hvd.nccl_built()),
    }


def _device(index: int) -> dict[str, Any]:
    """One device, as torch sees it, and whether it computes: a kernel that is not made for it fails here."""
    properties = torch.cuda.get_device_properties(index)
    ones = torch.ones(1024, 1024, device=torch.device("cuda", index))
    uuid = getattr(properties, "uuid", None)
    return {
        "uuid": device_uuid(index) or (f"GPU-{uuid}" if uuid else None),
        "name": properties.name,
        "capability": f"{properties.major}.{properties.minor}",
        "memory_bytes": properties.total_memory,
        "computes": float((ones @ ones).sum().item()) == 1024.0**3,
    }
