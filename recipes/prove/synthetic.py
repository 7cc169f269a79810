"""The benchmark as Horovod's users write it, for comparison with ours: an equivalent of pytorch_synthetic_benchmark.py.

As there (Horovod 0.28.1, examples/pytorch): SGD with learning rate 0.01, one fixed batch, 10 batches of warm-up, then
10 times the rate over 10 batches by ``timeit``, and the mean of these rates times the number of ranks; nothing of ours
times or synchronises a step. Other than there: ResNet-50 is ours, as torchvision is not in every image, and TF32 is on
for products as it is for convolutions, as in our own ``precision=tf32``.
"""

from __future__ import annotations

import timeit
from typing import Any

import horovod.torch as hvd
import torch
from models import CLASSES, MODELS
from place import device_of, kind_of
from torch import nn

_BATCHES = 10  # of the warm-up, and of each rate
_RATES = {False: 10, True: 3}  # by `short`


def run(wanted: str, *, short: bool, model: str, image_size: int, batch_size: int) -> tuple[str, dict[str, Any]]:
    """Images a second of all ranks, as that script prints it."""
    hvd.init()
    kind = kind_of(wanted)
    device = device_of(kind, hvd.local_rank())
    torch.backends.cudnn.benchmark = True
    torch.backends.cuda.matmul.allow_tf32 = True
    network = MODELS[model]().to(device)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(network.parameters(), lr=0.01 * hvd.size()), named_parameters=network.named_parameters()
    )
    hvd.broadcast_parameters(network.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    data = torch.randn(batch_size, 3, image_size, image_size).to(device)
    target = (torch.rand(batch_size) * CLASSES).long().to(device)

    def step() -> None:
        optimizer.zero_grad()
        nn.functional.cross_entropy(network(data), target).backward()
        optimizer.step()

    timeit.timeit(step, number=_BATCHES)
    rates = [batch_size * _BATCHES / timeit.timeit(step, number=_BATCHES) for _ in range(_RATES[short])]
    size = hvd.size()
    hvd.shutdown()
    return kind, {"images_per_s": size * sum(rates) / len(rates), "size": size, "batch_size": batch_size}
