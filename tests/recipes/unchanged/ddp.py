"""A torch.distributed script as its users write it: everything from the usual variables, by ``env://``.

Imports nothing of this project.
"""

import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo", init_method="env://")
rank, size, local_rank = dist.get_rank(), dist.get_world_size(), int(os.environ["LOCAL_RANK"])
torch.manual_seed(rank)
model = DistributedDataParallel(torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    optimizer.zero_grad()
    model(torch.randn(4, 8)).square().mean().backward()
    optimizer.step()
mine = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
everyones = [torch.empty_like(mine) for _ in range(size)]
dist.all_gather(everyones, mine)
same = all(torch.equal(each, mine) for each in everyones)
print(f"rank {rank} of {size}, local rank {local_rank}, same weights: {same}, arguments: {sys.argv[1:]}", flush=True)
Path(f"checkpoint-{rank}.txt").write_text(str(mine.sum().item()))
dist.destroy_process_group()
