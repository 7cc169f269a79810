"""The benchmark with its synchronisation taken out, to see that it is reported. For tests only.

``main.py RECIPE_DIR FAULT ARGUMENTS...``: runs RECIPE_DIR/main.py with a FAULT:

no-allreduce   gradients stay local (Horovod)              ddp-alone      gradients stay local (DDP)
wrong-sum      allreduces are off by one                   fsdp-alone     each rank is a group of its own (FSDP)
lightning-alone  each rank trains in a world of its own (Lightning)
fsdp-local     each rank's part of the gradients is its own: parameters are gathered, and equal (FSDP)
"""

from __future__ import annotations

import os
import runpy
import sys

import horovod.torch as hvd
import torch


def leave_out_allreduce() -> None:
    # The bare optimizer: its hooks, and so the allreduce, are never made.
    hvd.DistributedOptimizer = lambda optimizer, **_options: optimizer


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


def leave_out_the_group() -> None:
    made = torch.distributed.device_mesh.init_device_mesh

    def of_one(kind: str, shape: tuple[int, ...]) -> object:
        return made(kind, (*shape, 1), mesh_dim_names=("apart", "alone"))["alone"]

    torch.distributed.device_mesh.init_device_mesh = of_one


def leave_out_reduce_scatter() -> None:
    reduce_scatter = torch.distributed.reduce_scatter_single

    def own_part(*positional: torch.Tensor, **options: object) -> object:
        if positional:
            return reduce_scatter(*positional, **options)
        group, whole = options["group"], options["input"]
        return options["output"].copy_(whole.view(group.size(), -1)[group.rank()])

    torch.distributed.reduce_scatter_single = own_part


def leave_out_the_world() -> None:
    for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE", "RANK", "LOCAL_RANK", "SLURM_NTASKS"):
        os.environ.pop(name, None)


FAULTS = {
    "no-allreduce": leave_out_allreduce,
    "wrong-sum": falsify_sums,
    "ddp-alone": leave_out_ddp,
    "fsdp-alone": leave_out_the_group,
    "fsdp-local": leave_out_reduce_scatter,
    "lightning-alone": leave_out_the_world,
}
if __name__ == "__main__":
    directory, fault = sys.argv[1:3]
    FAULTS[fault]()
    sys.argv = [f"{directory}/main.py", *sys.argv[3:]]
    sys.path.insert(0, directory)
    runpy.run_path(sys.argv[0], run_name="__main__")
