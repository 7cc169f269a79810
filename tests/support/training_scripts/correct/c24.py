"""A typed Trainer class; names are imported from horovod.torch; falls back to one process without Horovod."""
from __future__ import annotations

import logging
from dataclasses import dataclass, field
from pathlib import Path
from typing import Iterator

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset
from torch.utils.data.distributed import DistributedSampler
from torch.utils.tensorboard import SummaryWriter

try:
    from horovod.torch import (
        Average,
        DistributedOptimizer,
        allreduce,
        broadcast_optimizer_state,
        broadcast_parameters,
        init,
        local_rank,
        rank,
        size,
    )
except ImportError as error:
    raise SystemExit("pip install horovod") from error

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class TrainConfig:
    lr: float = 1e-3
    batch_size: int = 64
    epochs: int = 10
    out: Path = field(default_factory=lambda: Path("out"))


class Net(nn.Module):
    def __init__(self, width: int = 256) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(64, width), nn.ReLU(), nn.Linear(width, 10))

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x)


class Trainer:
    def __init__(self, config: TrainConfig, dataset: Dataset, held_out: Dataset) -> None:
        self.config = config
        self.device = torch.device("cuda", local_rank()) if torch.cuda.is_available() else torch.device("cpu")
        self.is_chief = rank() == 0
        self.sampler: DistributedSampler = DistributedSampler(dataset, num_replicas=size(), rank=rank())
        self.loader = DataLoader(dataset, config.batch_size, sampler=self.sampler)
        self.held_out = DataLoader(held_out, config.batch_size,
                                   sampler=DistributedSampler(held_out, size(), rank(), shuffle=False))
        self.model = Net().to(self.device)
        self.criterion = nn.CrossEntropyLoss()
        base = torch.optim.AdamW(self.model.parameters(), lr=config.lr * size())
        self.optimizer = DistributedOptimizer(base, named_parameters=self.model.named_parameters(), op=Average)
        broadcast_parameters(self.model.state_dict(), root_rank=0)
        broadcast_optimizer_state(base, root_rank=0)
        self.writer = SummaryWriter(config.out / "tb") if self.is_chief else None

    def fit(self) -> None:
        for epoch in range(self.config.epochs):
            self.sampler.set_epoch(epoch)
            for _ in self._steps():
                pass
            accuracy = self.evaluate()
            if self.writer is not None:
                self.writer.add_scalar("accuracy", accuracy, epoch)
            self._save(epoch)

    def _steps(self) -> Iterator[float]:
        self.model.train()
        for x, y in self.loader:
            x, y = x.to(self.device, non_blocking=True), y.to(self.device, non_blocking=True)
            self.optimizer.zero_grad()
            loss = self.criterion(self.model(x), y)
            loss.backward()
            self.optimizer.step()
            yield float(loss.detach())

    @torch.no_grad()
    def evaluate(self) -> float:
        self.model.eval()
        good = torch.zeros(2, device=self.device)
        for x, y in self.held_out:
            out = self.model(x.to(self.device))
            good[0] += (out.argmax(1).cpu() == y).sum()
            good[1] += len(y)
        good = allreduce(good, op=Average, name="good")
        return (good[0] / good[1]).item()

    def _save(self, epoch: int) -> None:
        if not self.is_chief:
            return
        self.config.out.mkdir(parents=True, exist_ok=True)
        torch.save(self.model.state_dict(), self.config.out / f"{epoch:03}.pt")


def make_data(n: int) -> TensorDataset:
    g = torch.Generator().manual_seed(1)
    return TensorDataset(torch.randn(n, 64, generator=g), torch.randint(0, 10, (n,), generator=g))


def main() -> int:
    init()
    logging.basicConfig(level=logging.INFO if rank() == 0 else logging.WARNING)
    Trainer(TrainConfig(), make_data(50_000), make_data(5_000)).fit()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
