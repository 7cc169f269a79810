"""The benchmark on PyTorch with fully sharded data parallelism (FSDP2): ddp-pytorch's models and measure.

Each rank keeps a part of every parameter, gradient and optimizer state. Gathered parameters are equal on all ranks
whatever happened to the gradients, so they prove little. Therefore the gradients of the first step are compared, too:
what the ranks reduced must be the mean of what each had by itself in the same backward pass.
"""

from __future__ import annotations

import argparse
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
from gpu_runner_inside.benchmark.torch_checksum import checksum_of  # noqa: E402
from gpu_runner_inside.meter import reduction  # noqa: E402
from gpu_runner_inside.meter.torch_reduction import ReductionLook  # noqa: E402
from models import MODELS, Basic, Bottleneck  # noqa: E402
from torch.distributed.device_mesh import init_device_mesh  # noqa: E402

try:
    from torch.distributed.fsdp import fully_shard
except ImportError:
    sys.exit(
        f"torch {torch.__version__} has no torch.distributed.fsdp.fully_shard; fix: an image with torch 2.6 or newer"
    )

# Their names since torch 2.13; the older ones warn there.
REDUCE_SCATTER = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
ALL_GATHER = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
UNITS = (Basic, Bottleneck)  # are gathered and freed as a whole; what is left of the model is one more unit


class World(distributed.World):
    """torch.distributed's world (benchmark.World)."""

    def onehot_holds(self) -> bool:
        """By an allreduce, and by the two collectives of FSDP."""
        part, whole = torch.zeros(1, device=self._place), torch.zeros(self.size, device=self._place)
        onehot = torch.zeros(self.size, device=self._place)
        onehot[self.rank] = 1.0
        REDUCE_SCATTER(part, onehot)
        ALL_GATHER(whole, part)
        return super().onehot_holds() and bool((whole == 1.0).all())


class Training(distributed.Training):
    """The model, its data, and one step of it (benchmark.Training)."""

    sharded = "FSDP2"

    def __init__(self, options: argparse.Namespace, device: benchmark.Device) -> None:
        super().__init__(options, device, dist.get_rank())
        self.world, self.versions = World(self._place), distributed.versions()
        for parameter in self.model.parameters():  # equal by their seed; FSDP itself sends none
            dist.broadcast(parameter.data, 0)
        self.allreduce_bytes, self.gradients_device = None, device.kind  # other collectives carry them
        mesh = init_device_mesh(device.kind, (self.world.size,))
        for module in self.model.modules():
            if isinstance(module, UNITS):
                fully_shard(module, mesh=mesh)
        fully_shard(self.model, mesh=mesh)
        self._optimizer = torch.optim.SGD(self.model.parameters(), lr=0.005, momentum=0.9)
        self._look_at_first_steps()

    def parameters_checksum(self) -> str:
        """Of the whole parameters, gathered; every rank takes part."""
        return checksum_of(each.full_tensor() for each in self.model.parameters())

    def _look_at_first_steps(self) -> None:
        """Until one has finite gradients: this rank's own, and how far what FSDP reduced is from their mean."""
        look = ReductionLook(self.model, list(self.model.parameters()), self.sharded)
        while look.is_open:
            self.step()
            look.after_step()
        self.local_gradients = look.own or ""
        looks = self.world.gather(look.seen, "runner.reduction")
        self.reduced_gradients_error = reduction.error_of(looks) if self.world.size > 1 else 0.0


def main() -> int:
    options = options_of(sys.argv[1:], MODELS, __doc__, training.own_options)
    if options.compile or options.fp16_allreduce:
        sys.exit("this benchmark has neither --compile nor --fp16-allreduce; fix: leave them out")
    code = benchmark.run("fsdp-pytorch", options, Training(options, distributed.begun(options.device)))
    dist.destroy_process_group()
    return code


if __name__ == "__main__":
    sys.exit(main())
