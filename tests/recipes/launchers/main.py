"""A program for each framework that forms a world as its users do, and says which: one line for each process,
``formed SIZE as RANK of WORLD``, where all processes of one world name the same WORLD, which rank 0 has chosen.

Arguments: the framework, then processes on each node and nodes, which Lightning wants from its script.
"""

import os
import socket
import sys

FRAMEWORK, *NUMBERS = (word for word in sys.argv[1:] if word[0] != "-")  # deepspeed adds --local_rank=N
OWN_NAME = f"{socket.gethostname()}-{os.getpid()}"


def torch():
    import torch.distributed as dist

    dist.init_process_group("gloo")
    return _of_torch()


def _of_torch():
    import torch.distributed as dist

    name = [OWN_NAME]
    dist.broadcast_object_list(name)
    return dist.get_world_size(), dist.get_rank(), name[0]


def accelerate():
    from accelerate import Accelerator
    from accelerate.utils import broadcast_object_list

    accelerator = Accelerator(cpu=True)
    name = broadcast_object_list([OWN_NAME])
    return accelerator.num_processes, accelerator.process_index, name[0]


def deepspeed():
    import deepspeed

    deepspeed.ops.__compatible_ops__.clear()  # else it compiles an all-reduce in shared memory, for a minute
    deepspeed.init_distributed("gloo")
    return _of_torch()


def lightning():
    import lightning.pytorch as pl
    import torch
    from lightning.pytorch.demos.boring_classes import BoringModel

    devices, nodes = map(int, NUMBERS)
    options = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "max_steps": 1}
    trainer = pl.Trainer(accelerator="cpu", strategy="ddp", devices=devices, num_nodes=nodes, **options)
    trainer.fit(BoringModel())
    assert torch.distributed.is_initialized() or trainer.world_size == 1
    name = trainer.strategy.broadcast(OWN_NAME)
    return trainer.world_size, trainer.global_rank, name


def transformers():
    import torch
    from accelerate.utils import broadcast_object_list
    from transformers import Trainer, TrainingArguments

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(1))

        def forward(self, x, labels):
            return {"loss": ((self.weight * x - labels) ** 2).mean()}

    rows = [{"x": 1.0, "labels": 2.0}] * 64
    options = {
        "output_dir": "/tmp/trainer",
        "use_cpu": True,
        "max_steps": 1,
        "report_to": "none",
        "save_strategy": "no",
    }
    arguments = TrainingArguments(**options)
    Trainer(Model(), arguments, train_dataset=rows).train()
    return arguments.world_size, arguments.process_index, broadcast_object_list([OWN_NAME])[0]


def jax():
    import jax
    import numpy
    from jax.experimental import multihost_utils

    jax.distributed.initialize()
    name = numpy.frombuffer(OWN_NAME.encode().ljust(64), dtype=numpy.uint8)
    chosen = bytes(numpy.asarray(multihost_utils.broadcast_one_to_all(name), dtype=numpy.uint8)).decode().strip()
    return jax.process_count(), jax.process_index(), chosen


def horovod():
    import horovod.torch as hvd

    hvd.init()
    return hvd.size(), hvd.rank(), hvd.broadcast_object(OWN_NAME, 0)


def mpi():
    sys.path.append(f"{sys.prefix}/mpi4py")
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    return world.Get_size(), world.Get_rank(), world.bcast(OWN_NAME)


size, rank, name = globals()[FRAMEWORK]()
os.write(1, f"formed {size} as {rank} of {name}\n".encode())
distributed = sys.modules.get("torch.distributed")
if distributed and distributed.is_initialized():
    distributed.destroy_process_group()  # else a process may abort while it ends
