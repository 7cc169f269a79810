"""DDP over a stream that each rank reads its own part of."""
import os

import torch
from torch import distributed as dist
from torch import nn
from torch.utils.data import DataLoader, IterableDataset


class Lines(IterableDataset):
    def __init__(self, path, rank, world):
        self.path, self.rank, self.world = path, rank, world

    def __iter__(self):
        with open(self.path) as file:
            for number, line in enumerate(file):
                if number % self.world == self.rank:
                    yield torch.tensor([float(word) for word in line.split()])


class Trainer:
    def __init__(self):
        dist.init_process_group(backend="nccl", init_method="env://")
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.local = self.rank % torch.cuda.device_count()
        self.device = torch.device(f"cuda:{self.local}")
        torch.cuda.set_device(self.device)
        net = nn.Sequential(nn.Linear(127, 512), nn.ReLU(), nn.Linear(512, 1)).to(self.device)
        self.net = net
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.1 * self.world)
        self.loader = DataLoader(Lines(os.environ["DATA"], self.rank, self.world), batch_size=256)

    @property
    def main(self):
        return self.rank == 0

    def fit(self, epochs):
        for epoch in range(epochs):
            for row in self.loader:
                row = row.to(self.device)
                self.optimizer.zero_grad(set_to_none=True)
                loss = ((self.net(row[:, :-1]).squeeze(1) - row[:, -1]) ** 2).mean()
                loss.backward()
                self.optimizer.step()
            mean = loss.detach().clone()
            dist.all_reduce(mean, op=dist.ReduceOp.AVG)
            if self.main:
                print(f"{epoch}: {mean.item()}")
                torch.save(self.net.state_dict(), f"model-{epoch}.pt")


if __name__ == "__main__":
    Trainer().fit(3)
