"""Horovod with an elastic state's cousin: a sampler written here, Adasum, a scheduler that warms up, AMP."""
import math
import random

import horovod.torch as hvd
import torch
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader, Sampler, TensorDataset


class Mine(Sampler):
    def __init__(self, data):
        self.data, self.epoch = data, 0

    def __iter__(self):
        order = list(range(len(self.data)))
        random.Random(self.epoch).shuffle(order)
        self.epoch += 1
        return iter(order[hvd.rank() : len(order) // hvd.size() * hvd.size() : hvd.size()])

    def __len__(self):
        return len(self.data) // hvd.size()


def run():
    hvd.init()
    torch.cuda.set_device(hvd.local_rank())
    data = TensorDataset(*torch.load("train.pt"))
    loader = DataLoader(data, batch_size=32, sampler=Mine(data))
    model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.GELU(), torch.nn.Linear(256, 10)).cuda()
    factor = hvd.local_size() if hvd.nccl_built() else 1
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3 * factor)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters(), op=hvd.Adasum)
    schedule = LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 500) * 0.5 * (1 + math.cos(step / 10000 * math.pi)))
    scaler = torch.cuda.amp.GradScaler()
    if hvd.rank() == 0:
        hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    for epoch in range(4):
        seen = 0.0
        for x, y in loader:
            optimizer.zero_grad()
            with torch.cuda.amp.autocast():
                loss = torch.nn.functional.cross_entropy(model(x.cuda()), y.cuda())
            scaler.scale(loss).backward()
            optimizer.synchronize()
            scaler.unscale_(optimizer)
            with optimizer.skip_synchronize():
                scaler.step(optimizer)
            scaler.update()
            schedule.step()
            seen += loss.item()
        mean = hvd.allreduce(torch.tensor(seen / len(loader)), name="loss").item()
        if not hvd.rank():
            print(f"{epoch} {mean:.4f}")
            with open(f"epoch-{epoch}.pt", "wb") as file:
                torch.save(model.state_dict(), file)


if __name__ == "__main__":
    run()
