"""The benchmark on PyTorch: an image classifier under Horovod's DistributedOptimizer (gpu_runner_inside.benchmark)."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, os.environ.get("RUNNER_LIB") or str(HERE.parent / "lib" / "modules"))

import horovod  # noqa: E402
import horovod.torch as hvd  # noqa: E402
import torch  # noqa: E402
import training  # noqa: E402
from gpu_runner_inside.benchmark import benchmark  # noqa: E402
from gpu_runner_inside.benchmark.options import options_of  # noqa: E402
from models import MODELS  # noqa: E402
from waiting import sleep_while_waiting  # noqa: E402


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


class Training(training.Training):
    """The model, its data, and one step of it (benchmark.Training)."""

    def __init__(self, options: argparse.Namespace, device: benchmark.Device) -> None:
        super().__init__(options, device, hvd.rank())
        self.world, self.versions = World(), versions()
        self._clock = ComputeClock(on_device=device.kind == "cuda")
        hvd.broadcast_parameters(self.model.state_dict(), root_rank=0)
        self.look_at_local_gradients(compressed=options.fp16_allreduce)
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

    @property
    def instrumentation_s(self) -> float:
        return self._clock.own_s


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
        **training.versions(),
        "framework": "horovod",
        "horovod_version": horovod.__version__,
        "nccl_built": bool(hvd.nccl_built()),
        "gloo_enabled": bool(hvd.gloo_enabled()),
        "mpi_enabled": bool(hvd.mpi_enabled()),
    }


def own_options(parser: argparse.ArgumentParser) -> None:
    """What only Horovod has, and PyTorch."""
    training.own_options(parser)
    parser.add_argument("--hooks-at-one", action="store_true", help="a single rank runs the gradient hooks too")


def main() -> int:
    options = options_of(sys.argv[1:], MODELS, __doc__, own_options)
    hvd.init()
    device = training.device_of(options.device, hvd.rank(), hvd.local_rank())
    if device.kind == "cpu":
        sleep_while_waiting()
    code = benchmark.run("horovod-pytorch", options, Training(options, device))
    hvd.shutdown()
    return code


if __name__ == "__main__":
    sys.exit(main())
