"""DDP with torchrun: snapshot trainer, gradient accumulation with no_sync, AMP, wandb."""
import os
from contextlib import nullcontext
from dataclasses import dataclass

import torch
import torch.distributed as dist
import wandb
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler


@dataclass
class Config:
    epochs: int = 10
    batch: int = 64
    accum: int = 4
    lr: float = 3e-4
    snapshot: str = "snapshot.pt"


class Rows(Dataset):
    def __init__(self, n):
        self.x = torch.randn(n, 20)
        self.y = torch.randn(n, 1)

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return self.x[i], self.y[i]


def setup():
    dist.init_process_group("nccl")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))


class Trainer:
    def __init__(self, model, loader, optimizer, cfg):
        self.local_rank = int(os.environ["LOCAL_RANK"])
        self.rank = int(os.environ["RANK"])
        self.cfg = cfg
        self.loader = loader
        self.optimizer = optimizer
        self.model = model.to(self.local_rank)
        self.start = 0
        if os.path.exists(cfg.snapshot):
            self._load()
        self.model = DDP(self.model, device_ids=[self.local_rank])
        self.scaler = torch.amp.GradScaler("cuda")

    def _load(self):
        snap = torch.load(self.cfg.snapshot, map_location=f"cuda:{self.local_rank}")
        self.model.load_state_dict(snap["model"])
        self.start = snap["epoch"]

    def _epoch(self, epoch):
        self.loader.sampler.set_epoch(epoch)
        running = torch.zeros(1, device=self.local_rank)
        for i, (x, y) in enumerate(self.loader):
            x, y = x.to(self.local_rank), y.to(self.local_rank)
            last = (i + 1) % self.cfg.accum == 0
            with nullcontext() if last else self.model.no_sync():
                with torch.autocast("cuda", dtype=torch.float16):
                    loss = torch.nn.functional.mse_loss(self.model(x), y) / self.cfg.accum
                self.scaler.scale(loss).backward()
            if last:
                self.scaler.step(self.optimizer)
                self.scaler.update()
                self.optimizer.zero_grad(set_to_none=True)
            running += loss.detach()
        dist.all_reduce(running)
        if self.rank == 0:
            wandb.log({"loss": running.item() / dist.get_world_size(), "epoch": epoch})

    def _save(self, epoch):
        snap = {"model": self.model.module.state_dict(), "epoch": epoch}
        torch.save(snap, self.cfg.snapshot)

    def train(self):
        for epoch in range(self.start, self.cfg.epochs):
            self._epoch(epoch)
            if self.rank == 0 and epoch % 2 == 0:
                self._save(epoch)


def main():
    setup()
    cfg = Config()
    if int(os.environ["RANK"]) == 0:
        wandb.init(project="x")
    ds = Rows(4096)
    loader = DataLoader(ds, batch_size=cfg.batch, shuffle=False, pin_memory=True, sampler=DistributedSampler(ds))
    model = torch.nn.Linear(20, 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=cfg.lr)
    Trainer(model, loader, optimizer, cfg).train()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
