"""Synthetic throughput: random data, so there is nothing to shard, nothing to save."""
import timeit

import horovod.torch as hvd
import numpy as np
import torch
import torch.nn.functional as F
from torchvision import models

hvd.init()
cuda = torch.cuda.is_available()
if cuda:
    torch.backends.cudnn.benchmark = True
model = models.resnet50()
lr_scaler = hvd.size()
if cuda:
    model.cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01 * lr_scaler)
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters(), op=hvd.Average)
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
hvd.broadcast_optimizer_state(optimizer, root_rank=0)
data, target = torch.randn(32, 3, 224, 224), torch.LongTensor(32).random_() % 1000
if cuda:
    data, target = data.cuda(), target.cuda()


def step():
    optimizer.zero_grad()
    F.cross_entropy(model(data), target).backward()
    optimizer.step()


def log(text):
    if hvd.rank() != 0:
        return
    print(text)


timeit.timeit(step, number=10)
rates = []
for _ in range(10):
    rates.append(32 * 10 / timeit.timeit(step, number=10))
log(f"img/s per GPU: {np.mean(rates):.1f}; total on {hvd.size()}: {hvd.size() * np.mean(rates):.1f}")
