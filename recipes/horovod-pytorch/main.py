"""The benchmark on PyTorch: an image classifier under Horovod's DistributedOptimizer (gpu_runner_inside.benchmark)."""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import json
import os
import platform
import resource
import sys
import time
from pathlib import Path
from typing import Any, Callable, Iterable

HERE = Path(__file__).resolve().parent
sys.path.insert(0, os.environ.get("RUNNER_LIB") or str(HERE.parent / "lib" / "modules"))

import horovod  # noqa: E402
import horovod.torch as hvd  # noqa: E402
import torch  # noqa: E402
from gpu_runner_inside.benchmark import benchmark, proof  # noqa: E402
from gpu_runner_inside.benchmark.cuda_uuid import device_uuid  # noqa: E402
from gpu_runner_inside.benchmark.options import options_of  # noqa: E402
from models import CLASSES, MODELS  # noqa: E402
from torch import Tensor, nn  # noqa: E402
from waiting import sleep_while_waiting  # noqa: E402

AUTOCAST = {"amp-bf16": torch.bfloat16, "amp-fp16": torch.float16}


def device_of(wanted: str) -> benchmark.Device:
    """The GPU number local rank, or the only one seen; the processor where there is none.

    Raises:
        SystemExit: a GPU was asked for, and there is none for this rank.
    """
    kind = wanted if wanted != "auto" else "cuda" if torch.cuda.is_available() else "cpu"
    if kind == "cpu":
        return benchmark.Device("cpu", platform.processor() or platform.machine(), f"cpu-{os.getpid()}", None)
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    index = 0 if count == 1 else hvd.local_rank()
    if index >= count:
        sys.exit(
            f"rank {hvd.rank()} wants GPU {index} of {os.uname().nodename}, but sees {count} "
            f"(CUDA_VISIBLE_DEVICES={os.environ.get('CUDA_VISIBLE_DEVICES')!r})"
        )
    torch.cuda.set_device(index)
    properties = torch.cuda.get_device_properties(index)
    # The driver first: it tells the parts of one GPU apart (MIG), and torch before 2.4 knows no UUID.
    uuid = getattr(properties, "uuid", None)
    identity = device_uuid(index) or (f"GPU-{uuid}" if uuid else f"index-{index}")
    return benchmark.Device("cuda", properties.name, identity, index)


class World:
    """Horovod's world through torch (benchmark.World)."""

    def __init__(self) -> None:
        self.rank, self.size, self.local_rank = hvd.rank(), hvd.size(), hvd.local_rank()

    def agreed(self, value: float, name: str) -> float:
        return float(hvd.broadcast(torch.tensor([value], dtype=torch.float64), 0, name=f"runner.{name}").item())

    def barrier(self) -> None:
        hvd.barrier()

    def onehot_holds(self) -> bool:
        vector = torch.zeros(self.size)
        vector[self.rank] = 1.0
        return bool((hvd.allreduce(vector, name="runner.onehot", op=hvd.Sum) == 1.0).all())

    def gather(self, value: Any, name: str) -> list[Any]:
        raw = torch.tensor(list(json.dumps(value).encode()), dtype=torch.uint8)
        lengths = hvd.allgather(torch.tensor([len(raw)]), name=name + ".lengths").tolist()
        joined = bytes(hvd.allgather(raw, name=name).tolist())
        values, at = [], 0
        for length in lengths:
            values.append(json.loads(joined[at : at + length]))
            at += length
        return values


def raw_bytes(tensors: Iterable[Tensor]) -> Iterable[bytes]:
    for tensor in tensors:
        here = tensor.detach().cpu().contiguous()
        yield ctypes.string_at(here.data_ptr(), here.numel() * here.element_size())


class Training:
    """The model, its data, and one step of it (benchmark.Training)."""

    def __init__(self, options: argparse.Namespace, device: benchmark.Device) -> None:
        self.world, self.device, self.versions = World(), device, versions()
        self._place = torch.device(device.kind, device.index)
        self._clock = ComputeClock(on_device=device.kind == "cuda")
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
        own = torch.Generator().manual_seed(options.seed + hvd.rank())
        shape = (options.batch_size, 3, options.image_size, options.image_size)
        self._images = torch.randn(shape, generator=own).to(self._place, memory_format=layout)
        self._labels = torch.randint(CLASSES, (options.batch_size,), generator=own).to(self._place)
        hvd.broadcast_parameters(self.model.state_dict(), root_rank=0)
        self._forward: Callable[[Tensor], Tensor] = self.model
        # Before the optimizer registers its hooks: nothing of this backward pass leaves the rank.
        self._loss().backward()
        self.local_gradients = proof.checksum(raw_bytes(p.grad for p in self.model.parameters() if p.grad is not None))
        self.gradients_device = next(p.grad.device.type for p in self.model.parameters() if p.grad is not None)
        # Horovod's fp16 compression sends two bytes of each floating-point value.
        self.allreduce_bytes = sum(
            p.grad.numel() * (min(2, p.grad.element_size()) if options.fp16_allreduce else p.grad.element_size())
            for p in self.model.parameters()
            if p.grad is not None
        )
        self.model.zero_grad(set_to_none=True)
        if options.compile:
            self._forward = torch.compile(self.model)
        if options.hooks_at_one:
            # Only Horovod's Python side reads it from here on: it registers the hooks at size 1 as well.
            os.environ["HOROVOD_ELASTIC"] = "1"
        self.hooks = hvd.size() > 1 or os.environ.get("HOROVOD_ELASTIC") == "1"
        self._optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(self.model.parameters(), lr=0.005, momentum=0.9),
            named_parameters=self.model.named_parameters(),
            compression=hvd.Compression.fp16 if options.fp16_allreduce else hvd.Compression.none,
        )
        self._scaler = _scaler(device.kind) if self._dtype is torch.float16 else None

    def parameters_checksum(self) -> str:
        return proof.checksum(raw_bytes(self.model.parameters()))

    def step(self) -> None:
        self._clock.start()
        self._optimizer.zero_grad()
        self._last = loss = self._loss()
        if self._scaler is None:
            loss.backward()
            self._clock.mark()
            self._optimizer.step()
            return
        self._scaler.scale(loss).backward()
        self._clock.mark()
        self._optimizer.synchronize()
        self._scaler.unscale_(self._optimizer)
        with self._optimizer.skip_synchronize():
            self._scaler.step(self._optimizer)
        self._scaler.update()

    def synchronize(self) -> list[float]:
        if self.device.kind == "cuda":
            torch.cuda.synchronize(self._place)
        return self._clock.collect()

    def loss(self) -> float:
        return float(self._last.item())

    @property
    def instrumentation_s(self) -> float:
        return self._clock.own_s

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


def _scaler(kind: str) -> Any:
    made = getattr(torch.amp, "GradScaler", None)
    return made(kind) if made is not None else torch.cuda.amp.GradScaler(enabled=kind == "cuda")


class ComputeClock:
    """Each step's own computing, from its start to the end of its backward pass: without waiting for other ranks.

    Attributes:
        own_s: time that the host has spent in this clock's calls, seconds.
    """

    def __init__(self, *, on_device: bool) -> None:
        self.own_s = 0.0
        self._on_device = on_device
        self._open: list[tuple[Any, Any]] = []
        self._start: Any = None

    def start(self) -> None:
        began = time.perf_counter()
        self._start = self._now()
        self.own_s += time.perf_counter() - began

    def mark(self) -> None:
        """This rank's own computing is queued; what follows waits for others."""
        began = time.perf_counter()
        self._open.append((self._start, self._now()))
        self.own_s += time.perf_counter() - began

    def collect(self) -> list[float]:
        """Seconds of the steps since the last call; the device was synchronised."""
        began = time.perf_counter()
        done, self._open = self._open, []
        times = [start.elapsed_time(end) / 1000.0 if self._on_device else end - start for start, end in done]
        self.own_s += time.perf_counter() - began
        return times

    def _now(self) -> Any:
        if not self._on_device:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event


def versions() -> dict[str, Any]:
    """Of what computed; ``None`` where there is no such part."""
    return {
        "framework": "horovod",
        "framework_version": torch.__version__,
        "horovod_version": horovod.__version__,
        "python_version": platform.python_version(),
        "cuda_version": torch.version.cuda,
        "nccl_version": ".".join(map(str, torch.cuda.nccl.version())) if torch.cuda.is_available() else None,
        "nccl_built": bool(hvd.nccl_built()),
        "gloo_enabled": bool(hvd.gloo_enabled()),
        "mpi_enabled": bool(hvd.mpi_enabled()),
    }


def own_options(parser: argparse.ArgumentParser) -> None:
    """What only this framework has."""
    parser.add_argument("--channels-last", action="store_true", help="images, and so all activations, in NHWC")
    parser.add_argument("--hooks-at-one", action="store_true", help="a single rank runs the gradient hooks too")


def main() -> int:
    options = options_of(sys.argv[1:], MODELS, __doc__, own_options)
    hvd.init()
    device = device_of(options.device)
    if device.kind == "cpu":
        sleep_while_waiting()
    code = benchmark.run("horovod-pytorch", options, Training(options, device))
    hvd.shutdown()
    return code


if __name__ == "__main__":
    sys.exit(main())
