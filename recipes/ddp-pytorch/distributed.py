"""What the benchmarks on torch.distributed share: its world, the versions, and a step."""

from __future__ import annotations

import os
from typing import Any

import torch
import torch.distributed as dist
import training
from gpu_runner_inside.benchmark import benchmark
from gpu_runner_inside.benchmark.torch_gather import gathered


class World:
    """torch.distributed's world (benchmark.World). NCCL takes tensors on the GPU only."""

    def __init__(self, place: torch.device) -> None:
        self.rank, self.size, self.local_rank = dist.get_rank(), dist.get_world_size(), local_rank()
        self._place = place

    def agreed(self, value: float, _name: str) -> float:
        tensor = torch.tensor([value], dtype=torch.float64, device=self._place)
        dist.broadcast(tensor, 0)
        return float(tensor.item())

    def barrier(self) -> None:
        dist.barrier()

    def onehot_holds(self) -> bool:
        vector = torch.zeros(self.size, device=self._place)
        vector[self.rank] = 1.0
        dist.all_reduce(vector)
        return bool((vector == 1.0).all())

    def gather(self, value: Any, _name: str) -> list[Any]:
        return gathered(value, self._place)


class Training(training.Training):
    """Part of benchmark.Training. A class of it wraps the model, and has ``world``, ``versions`` and ``_optimizer``.

    The backward pass ends with its collectives, so that own computing cannot be separated from waiting.
    """

    hooks = True  # they work at every size
    instrumentation_s = 0.0

    def step(self) -> None:
        self._optimizer.zero_grad()
        self._last = loss = self._loss()
        if self._scaler is None:
            loss.backward()
            self._optimizer.step()
            return
        self._scaler.scale(loss).backward()
        self._scaler.step(self._optimizer)
        self._scaler.update()

    def synchronize(self) -> list[float]:
        if self.device.kind == "cuda":
            torch.cuda.synchronize(self._place)
        return []


def versions() -> dict[str, Any]:
    """Of what computed; ``None`` where there is no such part."""
    return {
        **training.versions(),
        "framework": "torch",
        "horovod_version": None,
        "nccl_built": bool(dist.is_nccl_available()),
        "gloo_enabled": dist.get_backend() == "gloo",
        "mpi_enabled": False,
    }


def local_rank() -> int:
    return int(os.environ.get("LOCAL_RANK", "0"))


def begun(wanted: str) -> benchmark.Device:
    """The device of this rank (training.device_of), with which torch.distributed has begun."""
    device = training.device_of(wanted, int(os.environ.get("RANK", "0")), local_rank())
    dist.init_process_group("nccl" if device.kind == "cuda" else "gloo", init_method="env://")
    return device
