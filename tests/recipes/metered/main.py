"""A training script of a user's: DistributedDataParallel on drawn data, with one peculiarity, by its first argument.

``main.py PECULIARITY SOURCE``: SOURCE is ``script`` where it calls the meter itself, ``hook`` where --meter does.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

BATCH, STEPS = 32, 60


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Dropout(0.5), nn.Linear(64, 10))


class Drawn(torch.utils.data.Dataset[Any]):
    """Items that need no memory; each worker that loads them also trains a little, which must not count."""

    def __init__(self, rank: int, train: bool) -> None:
        self.rank, self.train = rank, train

    def __len__(self) -> int:
        return BATCH * STEPS

    def __getitem__(self, index: int) -> Any:
        if self.train:
            weight = nn.Parameter(torch.ones(2))
            optimizer = torch.optim.SGD([weight], lr=0.1)
            weight.sum().backward()
            optimizer.step()
        own = torch.Generator().manual_seed(index * 64 + self.rank)
        return torch.randn(16, generator=own), int(torch.randint(10, (), generator=own))


def main(peculiarity: str, source: str) -> None:  # noqa: PLR0912
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.set_num_threads(1)
    if peculiarity == "exec" and not os.environ.get("EXECUTED"):
        os.environ["EXECUTED"] = "1"
        os.execv(sys.executable, [sys.executable, *sys.argv])
    if peculiarity != "alone":
        dist.init_process_group("gloo")
    net = network()
    model: nn.Module = net
    if size > 1 and peculiarity not in ("alone", "unsynchronised", "uneven"):
        model = nn.parallel.DistributedDataParallel(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**8) if peculiarity == "skipped" else None
    accumulate = 2 if peculiarity == "accumulation" else 1
    meter = None
    if source == "script":
        import runner_meter

        known = {} if peculiarity == "no-model" else {"model": model, "optimizer": optimizer}
        stated: dict[str, Any] = {}
        if peculiarity == "tokens":
            stated = {"unit": "tokens", "flops_per_sample": 1e3, "peak_flops": 1e12}
        if peculiarity == "evaluation":
            stated = {"steps": 30}
        meter = runner_meter.start(batch_size=BATCH, accumulate=accumulate, **known, **stated)
        if peculiarity == "two-meters":
            runner_meter.start(batch_size=BATCH, **known)
    loader: Any = None
    if peculiarity == "workers":
        loader = iter(torch.utils.data.DataLoader(Drawn(rank, True), batch_size=BATCH, num_workers=2))
    own = torch.Generator().manual_seed(rank)
    steps = 10 + 40 * rank if peculiarity == "uneven" else STEPS
    for step in range(steps):
        optimizer.zero_grad()
        taken = 5 if peculiarity == "last-batch" and step % 10 == 9 else BATCH
        for _ in range(accumulate):
            data = torch.randn(taken, 16, generator=own), torch.randint(10, (taken,), generator=own)
            images, labels = next(loader) if loader is not None else data
            loss = nn.functional.cross_entropy(model(images), labels)
            if scaler is not None and step % 7 == 3:
                loss = loss * float("inf")
            (loss if scaler is None else scaler.scale(loss)).backward()
        if scaler is None:
            optimizer.step()
        else:
            scaler.step(optimizer)
            scaler.update()
        if meter is not None:
            meter.step(taken if peculiarity == "last-batch" else None)
        if peculiarity == "half" and step == 10:
            return
        if peculiarity == "raises" and step == 10:
            raise ValueError("out of data")
        if peculiarity == "os-exit" and step == 10:
            os._exit(0)
        if peculiarity == "evaluation" and step % 10 == 9:
            model.eval()
            with torch.no_grad():
                for _ in range(200):
                    model(images)
            model.train()
        if peculiarity == "checkpoint" and step % 10 == 9 and rank == 0:
            torch.save(net.state_dict(), f"/tmp/checkpoint-{os.getpid()}")
            Path(f"/tmp/checkpoint-{os.getpid()}").unlink()
    if peculiarity == "os-exit-after":
        os._exit(0)
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
