"""The benchmark with its synchronisation taken out, to see that it is reported. For tests only.

``main.py RECIPE_DIR FAULT ARGUMENTS...``: runs RECIPE_DIR/main.py with a FAULT:

no-allreduce   gradients stay local (Horovod)              ddp-alone      gradients stay local (DDP)
same-data      every rank draws from the same seed         both           of Horovod's
wrong-sum      allreduces are off by one
"""

from __future__ import annotations

import runpy
import sys

import horovod.torch as hvd
import torch


def leave_out_allreduce() -> None:
    # The bare optimizer: its hooks, and so the allreduce, are never made.
    hvd.DistributedOptimizer = lambda optimizer, **_options: optimizer


def draw_the_same_data() -> None:
    seeded = torch.Generator.manual_seed

    class SameSeed(torch.Generator):
        def manual_seed(self, seed: int) -> torch.Generator:
            return seeded(self, seed - hvd.rank())

    torch.Generator = SameSeed


def falsify_sums() -> None:
    allreduce = hvd.allreduce
    hvd.allreduce = lambda tensor, **options: allreduce(tensor, **options) + 1
    hvd.allreduce_ = lambda tensor, **options: tensor.copy_(allreduce(tensor, **options) + 1)
    torch.distributed.all_reduce = lambda tensor: tensor.add_(1)


def leave_out_ddp() -> None:
    class Unwrapped(torch.nn.Module):
        def __init__(self, module: torch.nn.Module, **_options: object) -> None:
            super().__init__()
            self.module = module

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.module(x)

    torch.nn.parallel.DistributedDataParallel = Unwrapped


if __name__ == "__main__":
    directory, fault = sys.argv[1:3]
    if fault in ("no-allreduce", "both"):
        leave_out_allreduce()
    if fault in ("same-data", "both"):
        draw_the_same_data()
    if fault == "ddp-alone":
        leave_out_ddp()
    if fault == "wrong-sum":
        falsify_sums()
    sys.argv = [f"{directory}/main.py", *sys.argv[3:]]
    sys.path.insert(0, directory)
    runpy.run_path(sys.argv[0], run_name="__main__")
