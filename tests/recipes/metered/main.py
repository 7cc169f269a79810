"""A training script of a user, with one peculiarity: ``main.py PECULIARITY SOURCE``.

It trains by DistributedDataParallel on drawn data. SOURCE is ``script`` where it calls the meter itself, ``hook`` where
``submit --meter`` does, and ``none``. At its end each rank prints a checksum of all that training changes.
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
import os
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

BATCH, STEPS = 32, 60
BY_HAND = ("broadcast", "by-hand", "idle", "part")  # gradients are sent without DistributedDataParallel
STATED: dict[str, dict[str, Any]] = {
    "no-model": {"model": None, "optimizer": None},
    "tokens": {"unit": "tokens", "flops_per_sample": 1e3, "peak_flops": 1e12},
    "accumulation": {"accumulate": 2},
    "evaluation": {"steps": 30},
    "stated-sharded": {"sharded": True},
}


class Drawn(torch.utils.data.Dataset[Any]):
    """Items that need no memory; a worker that loads one also trains a little, which must not be counted."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.optimizer: torch.optim.Optimizer | None = None

    def __len__(self) -> int:
        return BATCH * STEPS

    def __getitem__(self, index: int) -> Any:
        if self.optimizer is None:
            weight = nn.Parameter(torch.ones(2))
            weight.sum().backward()
            self.optimizer = torch.optim.SGD([weight], lr=0.1)
        self.optimizer.step()
        own = torch.Generator().manual_seed(index * 64 + self.rank)
        return torch.randn(16, generator=own), int(torch.randint(10, (), generator=own))


def parallel(peculiarity: str, net: nn.Module) -> tuple[nn.Module, Any]:
    """The model and the optimizer as this kind of training wraps them."""
    if peculiarity == "horovod":
        import horovod.torch as hvd

        hvd.init()
        hvd.broadcast_parameters(net.state_dict(), root_rank=0)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
        return net, hvd.DistributedOptimizer(optimizer, named_parameters=net.named_parameters())
    if peculiarity.startswith("sharded"):
        return sharded(peculiarity, net)
    alone = peculiarity in ("alone", "unsynchronised", "uneven", "divided-optimizer-unreduced", *BY_HAND)
    model = net if alone or dist.get_world_size() == 1 else nn.parallel.DistributedDataParallel(net)
    if peculiarity == "sparse":
        return model, torch.optim.SGD(model.parameters(), lr=0.01)
    if peculiarity.startswith("divided-optimizer"):
        from torch.distributed.optim import ZeroRedundancyOptimizer

        return model, ZeroRedundancyOptimizer(model.parameters(), optimizer_class=torch.optim.Adam, lr=0.01)
    return model, torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)


class Around(nn.Module):
    """Uses the weights of a module that it never calls, as nn.MultiheadAttention does."""

    def __init__(self, within: nn.Linear) -> None:
        super().__init__()
        self.within = within

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        return nn.functional.linear(given, self.within.weight, self.within.bias)


def keep(output: torch.Tensor, part: torch.Tensor) -> None:
    """What a collective does that reduces nothing."""
    output.copy_(part)


def sharded(peculiarity: str, net: nn.Module) -> tuple[nn.Module, Any]:
    """By FSDP1, or by FSDP2 (fully_shard); each may lack the reduction, or divide among one rank alone."""
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard

    rank, size = dist.get_rank(), dist.get_world_size()
    alone = [dist.new_group([each]) for each in range(size)][rank] if peculiarity.endswith("alone") else None
    if peculiarity.startswith("sharded-by-module"):
        model = net
        model[4] = Around(model[4])
        mesh = DeviceMesh.from_group(alone or dist.group.WORLD, "cpu")
        fully_shard(model[4], mesh=mesh)
        fully_shard(model, mesh=mesh)
        if peculiarity.endswith("unreduced"):
            for name in ("reduce_scatter_tensor", "reduce_scatter_single"):  # the second since torch 2.13
                setattr(dist, name, lambda output, input, **_named: keep(output, input.chunk(size)[rank]))
    else:
        model = FullyShardedDataParallel(net, process_group=alone, device_id=torch.device("cpu"))
        if peculiarity.endswith("unreduced"):
            model.register_comm_hook(None, lambda _state, whole, part: part.copy_(whole.chunk(size)[rank]))
    return model, torch.optim.SGD(model.parameters(), lr=0.01)


def state_of(net: nn.Module, optimizer: Any) -> str:
    """Weights, running statistics, gradients, momentum and random state."""
    tensors = [*net.state_dict().values(), *(each.grad for each in net.parameters() if each.grad is not None)]
    tensors += [value for each in optimizer.state.values() for value in each.values() if torch.is_tensor(value)]
    digest = hashlib.sha256()
    for placed in (*tensors, torch.get_rng_state()):
        each = placed.to_local() if hasattr(placed, "to_local") else placed  # of FSDP2: this rank's part
        digest.update(each.to_dense().numpy().tobytes())
    return digest.hexdigest()[:16]


def train(peculiarity: str, source: str) -> str:  # noqa: PLR0912
    """Train once; the state at the end."""
    rank = int(os.environ["RANK"])
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(16, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Dropout(0.5), nn.Linear(64, 10))
    if peculiarity == "sparse":
        net = nn.Sequential(nn.EmbeddingBag(64, 10, sparse=True))
    model, optimizer = parallel(peculiarity, net)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**8) if peculiarity == "skipped" else None
    accumulate = 2 if peculiarity == "accumulation" else 1
    meter = None
    if source == "script":
        import runner_meter

        stated = {"model": model, "optimizer": optimizer, **STATED.get(peculiarity, {})}
        meter = runner_meter.start(batch_size=BATCH, **stated)
        if peculiarity == "two-meters":
            runner_meter.start(batch_size=BATCH, model=model, optimizer=optimizer)
    beside = nn.Parameter(torch.zeros(10, 10))
    loader: Any = None
    if peculiarity in ("workers", "spawned-workers"):
        context = "spawn" if peculiarity == "spawned-workers" else "fork"
        loading = torch.utils.data.DataLoader(
            Drawn(rank), batch_size=BATCH, num_workers=2, multiprocessing_context=context
        )
        loader = iter(loading)
    torch.manual_seed(rank if peculiarity == "same-data" else 0)  # of dropout
    own = torch.Generator().manual_seed(0 if peculiarity == "same-data" else rank)
    for step in range(10 + 40 * rank if peculiarity == "uneven" else STEPS):
        optimizer.zero_grad()
        taken = 5 if peculiarity == "last-batch" and step % 10 == 9 else BATCH
        if peculiarity == "own-batches":
            taken += 8 * rank + step % 3
        if peculiarity == "global-batch":
            taken //= dist.get_world_size()
        with model.no_sync() if peculiarity == "closure" else contextlib.nullcontext():  # type: ignore[operator]
            for _ in range(0 if peculiarity == "idle" and rank and step >= 3 else accumulate):
                data = torch.randn(taken, 16, generator=own), torch.randint(10, (taken,), generator=own)
                if peculiarity == "sparse":
                    data = torch.randint(64, (taken, 16), generator=own), data[1]
                images, labels = next(loader) if loader is not None else data
                output = net[1:](net[0](images)) if peculiarity == "part" and step % 2 else model(images)
                loss = nn.functional.cross_entropy(output, labels)
                if scaler is not None and step % 7 == 3:
                    loss = loss * float("inf")
                (loss if scaler is None else scaler.scale(loss)).backward()
        for each in net.parameters() if peculiarity in BY_HAND else ():
            each.grad = torch.zeros_like(each) if each.grad is None else each.grad
            if peculiarity == "broadcast":
                dist.broadcast(each.grad, 0)
            else:
                dist.all_reduce(each.grad)
        if peculiarity == "closure":  # the last pass lies in the step, as Lightning has it
            optimizer.step(lambda x=images, y=labels: nn.functional.cross_entropy(model(x), y).backward())  # type: ignore[misc]
        elif scaler is None:
            optimizer.step()
        else:
            scaler.step(optimizer)
            scaler.update()
        if peculiarity == "counted-twice" and meter is not None:
            meter.step()
        if peculiarity == "trained-beside":
            beside.sum().backward()
            torch.optim.SGD([beside], lr=0.01).step()
        if meter is not None:
            meter.step(taken if peculiarity == "last-batch" else None)
        if peculiarity == "rollout":
            with torch.no_grad():  # in training mode, but it trains on nothing of this
                model(images)
        if step % 10 == 4 and peculiarity == "saved-whole":
            torch.save(model.module, f"/tmp/saved-{os.getpid()}")
            torch.save(model, f"/tmp/saved-{os.getpid()}")
            Path(f"/tmp/saved-{os.getpid()}").unlink()
            copy.deepcopy(net)(images)
        if step == 10 and peculiarity == "half":
            break
        if step == 10 and peculiarity == "raises":
            raise ValueError("out of data")
        if step == 10 and peculiarity == "os-exit":
            os._exit(0)
        if step % 10 == 9 and peculiarity == "evaluation":
            model.eval()
            with torch.no_grad():
                for _ in range(200):
                    model(images)
            model.train()
        if step % 10 == 9 and peculiarity == "checkpoint" and rank == 0:
            torch.save(net.state_dict(), f"/tmp/checkpoint-{os.getpid()}")
            Path(f"/tmp/checkpoint-{os.getpid()}").unlink()
    if peculiarity == "os-exit-after":
        os._exit(0)
    return state_of(net, optimizer)


def main(peculiarity: str, source: str) -> None:
    torch.set_num_threads(1)
    if peculiarity == "exec" and not os.environ.get("EXECUTED"):
        os.environ["EXECUTED"] = "1"
        os.execv(sys.executable, [sys.executable, *sys.argv])
    if peculiarity not in ("alone", "horovod"):
        dist.init_process_group("gloo")
    print("state", train(peculiarity, source))
    if peculiarity == "twice":  # the first with the meter, this one without
        print("state", train(peculiarity, "none"))
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
