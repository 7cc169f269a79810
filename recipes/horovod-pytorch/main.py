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
            groups=options.groups,
        )
        self._is_grouped = options.groups is not None
        self._gradients: Gradients | None = None

    def use(self, arm: str) -> None:
        if self._is_grouped and arm != "full":
            sys.exit("gradients in groups have no arms but full; fix: leave out --groups")
        if self._gradients is None:
            self._gradients = Gradients(self._optimizer)
        self._gradients.arm = arm
        if arm == "full":
            hvd.broadcast_parameters(self.model.state_dict(), root_rank=0)
            hvd.broadcast_optimizer_state(self._optimizer, root_rank=0)

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


class Gradients:
    """What becomes of a gradient when its hook runs, in each arm: all else of a step is the same.

    Horovod's optimizer (0.28.1, ``horovod/torch/optimizer.py``) asks ``_allreduce_grad_async`` of each parameter for a
    handle and what the compression needs to undo itself; a handle that is a function gives the gradient when it is
    called.

    Attributes:
        arm: full, coordination (an allreduce of one number in the gradient's place) or uncoupled (nothing).
    """

    def __init__(self, optimizer: Any) -> None:
        self.arm = "full"
        self._names: dict[Any, str] = optimizer._parameter_names
        self._allreduce = optimizer._allreduce_grad_async
        self._number: dict[Any, torch.Tensor] = {}
        optimizer._allreduce_grad_async = self._start

    def _start(self, parameter: Any) -> tuple[Any, Any]:
        if self.arm == "full":
            return self._allreduce(parameter)
        if self.arm == "uncoupled":
            return (lambda: parameter.grad), parameter.grad.dtype
        if parameter not in self._number:
            self._number[parameter] = torch.zeros(1, device=parameter.device)
        name = f"runner.coordination.{self._names[parameter]}"
        handle = hvd.allreduce_async_(self._number[parameter], name=name, op=hvd.Sum)

        def wait() -> Any:
            hvd.synchronize(handle)
            return parameter.grad

        return wait, parameter.grad.dtype


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
    parser.add_argument(
        "--arms",
        choices=("full", "coordination", "uncoupled", "uncoupled,full", "uncoupled,coordination,full"),
        default="full",
        help="that take turns, the main one last",
    )
    parser.add_argument("--groups", type=int, metavar="N", help="gradients are reduced in N groups, each in one call")
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
