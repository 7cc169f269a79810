"""What the benchmarks on PyTorch share, whoever does the allreduces: device, model, data, loss, checksums."""

from __future__ import annotations

import argparse
import contextlib
import os
import platform
import resource
import sys
from typing import Any, Callable

import torch
from gpu_runner_inside.benchmark import benchmark
from gpu_runner_inside.benchmark.cuda_uuid import device_uuid
from gpu_runner_inside.benchmark.torch_checksum import checksum_of
from models import CLASSES, MODELS
from torch import Tensor, nn

AUTOCAST = {"amp-bf16": torch.bfloat16, "amp-fp16": torch.float16}


def device_of(wanted: str, rank: int, local_rank: int) -> benchmark.Device:
    """The GPU number local rank, or the only one seen; the processor where there is none.

    Raises:
        SystemExit: a GPU was asked for, and there is none for this rank.
    """
    kind = wanted if wanted != "auto" else "cuda" if torch.cuda.is_available() else "cpu"
    if kind == "cpu":
        return benchmark.Device("cpu", platform.processor() or platform.machine(), f"cpu-{os.getpid()}", None)
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    index = 0 if count == 1 else local_rank
    if index >= count:
        sys.exit(
            f"rank {rank} wants GPU {index} of {os.uname().nodename}, but sees {count} "
            f"(CUDA_VISIBLE_DEVICES={os.environ.get('CUDA_VISIBLE_DEVICES')!r})"
        )
    torch.cuda.set_device(index)
    properties = torch.cuda.get_device_properties(index)
    # The driver first: it tells the parts of one GPU apart (MIG), and torch before 2.4 knows no UUID.
    uuid = getattr(properties, "uuid", None)
    identity = device_uuid(index) or (f"GPU-{uuid}" if uuid else f"index-{index}")
    return benchmark.Device("cuda", properties.name, identity, index)


class Training:
    """The model, its data, and what the benchmark asks of both (part of benchmark.Training).

    A class of it does the allreduces: it has ``world``, ``versions``, ``hooks``, ``step`` and ``synchronize``.
    """

    def __init__(self, options: argparse.Namespace, device: benchmark.Device, rank: int) -> None:
        self.device = device
        self._place = torch.device(device.kind, device.index)
        self._last = torch.zeros(())
        self._dtype = AUTOCAST.get(options.precision)
        use_tf32 = options.precision != "fp32"
        torch.backends.cuda.matmul.allow_tf32 = use_tf32
        torch.backends.cudnn.allow_tf32 = use_tf32
        torch.backends.cudnn.benchmark = True
        torch.manual_seed(options.seed)
        # Only the images: Horovod refuses parameters in this layout ("Tensor is required to be contiguous"), and a
        # convolution goes by its input's.
        layout = torch.channels_last if options.channels_last else torch.contiguous_format
        self.model: nn.Module = MODELS[options.model]().to(self._place)
        own = torch.Generator().manual_seed(options.seed + rank)
        shape = (options.batch_size, 3, options.image_size, options.image_size)
        self._images = torch.randn(shape, generator=own).to(self._place, memory_format=layout)
        self._labels = torch.randint(CLASSES, (options.batch_size,), generator=own).to(self._place)
        self._forward: Callable[[Tensor], Tensor] = self.model
        self._scaler = _scaler(device.kind) if self._dtype is torch.float16 else None

    def look_at_local_gradients(self, *, compressed: bool) -> None:
        """One backward pass of which nothing leaves the rank: no optimizer or wrapper may have its hooks yet.

        ``compressed``: gradients are sent as fp16, two bytes of each floating-point value.
        """
        self._loss().backward()
        gradients = [each.grad for each in self.model.parameters() if each.grad is not None]
        self.local_gradients = checksum_of(gradients)
        self.gradients_device = gradients[0].device.type
        self.allreduce_bytes = sum(
            each.numel() * (min(2, each.element_size()) if compressed else each.element_size()) for each in gradients
        )
        self.model.zero_grad(set_to_none=True)

    def parameters_checksum(self) -> str:
        return checksum_of(self.model.parameters())

    def loss(self) -> float:
        return float(self._last.item())

    def peak_memory_bytes(self) -> int:
        if self.device.kind == "cuda":
            return int(torch.cuda.max_memory_allocated())
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

    def _loss(self) -> Tensor:
        autocast = (
            contextlib.nullcontext()
            if self._dtype is None
            else torch.autocast(device_type=self.device.kind, dtype=self._dtype)
        )
        with autocast:
            return nn.functional.cross_entropy(self._forward(self._images), self._labels)


def versions() -> dict[str, Any]:
    """Of what computed, whoever did the allreduces; ``None`` where there is no such part."""
    return {
        "framework_version": torch.__version__,
        "python_version": platform.python_version(),
        "cuda_version": torch.version.cuda,
        "nccl_version": ".".join(map(str, torch.cuda.nccl.version())) if torch.cuda.is_available() else None,
    }


def own_options(parser: argparse.ArgumentParser) -> None:
    """What only this framework has."""
    parser.add_argument("--channels-last", action="store_true", help="images, and so all activations, in NHWC")


def _scaler(kind: str) -> Any:
    made = getattr(torch.amp, "GradScaler", None)
    return made(kind) if made is not None else torch.cuda.amp.GradScaler(enabled=kind == "cuda")
