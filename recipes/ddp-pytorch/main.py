"""The benchmark on PyTorch with DistributedDataParallel: horovod-pytorch's models and measure, without Horovod.

Everything comes from the usual variables (``env://``), so that torchrun starts it, too.
"""

from __future__ import annotations

import argparse
import contextlib
import inspect
import os
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, os.environ.get("RUNNER_LIB") or str(HERE.parent / "lib" / "modules"))

import distributed  # noqa: E402
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
import training  # noqa: E402
from gpu_runner_inside.benchmark import benchmark  # noqa: E402
from gpu_runner_inside.benchmark.options import options_of  # noqa: E402
from models import MODELS  # noqa: E402
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402


class Training(distributed.Training):
    """The model, its data, and one step of it (benchmark.Training)."""

    def __init__(self, options: argparse.Namespace, device: benchmark.Device) -> None:
        super().__init__(options, device, dist.get_rank())
        self.world, self.versions = distributed.World(self._place), distributed.versions()
        self.look_at_local_gradients(compressed=options.fp16_allreduce)
        # It makes rank 0's parameters everyone's. BatchNorm's statistics stay each rank's own, as with Horovod.
        wrapped = DistributedDataParallel(
            self.model, device_ids=None if device.index is None else [device.index], **{buffers_option(): False}
        )
        if options.fp16_allreduce:
            wrapped.register_comm_hook(None, default_hooks.fp16_compress_hook)
        self._wrapped, self._arm = wrapped, "full"
        self._forward = torch.compile(wrapped) if options.compile else wrapped
        self._optimizer = torch.optim.SGD(self.model.parameters(), lr=0.005, momentum=0.9)

    def use(self, arm: str) -> None:
        self._arm = arm
        if arm == "full":
            state = self._optimizer.state.values()
            for tensor in [
                *self.model.parameters(),
                *self.model.buffers(),
                *(each["momentum_buffer"] for each in state),
            ]:
                dist.broadcast(tensor.detach(), 0)

    def step(self) -> None:
        with self._wrapped.no_sync() if self._arm == "uncoupled" else contextlib.nullcontext():
            super().step()


def buffers_option() -> str:
    """The name of DDP's option that copies rank 0's buffers in each step: torch 2.13 has a new one."""
    known = inspect.signature(DistributedDataParallel).parameters
    return "forward_sync_buffers" if "forward_sync_buffers" in known else "broadcast_buffers"


def own_options(parser: argparse.ArgumentParser) -> None:
    """DDP negotiates nothing while it trains, so it has no arm for that."""
    training.own_options(parser)
    parser.add_argument(
        "--arms",
        choices=("full", "uncoupled", "uncoupled,full"),
        default="full",
        help="that take turns, the main one last",
    )


def main() -> int:
    options = options_of(sys.argv[1:], MODELS, __doc__, own_options)
    code = benchmark.run("ddp-pytorch", options, Training(options, distributed.begun(options.device)))
    dist.destroy_process_group()
    return code


if __name__ == "__main__":
    sys.exit(main())
