"""FSDP2 (fully_shard) with distributed checkpoints: every rank takes part in saving."""
import os

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.utils.data import DataLoader, DistributedSampler
from transformers import AutoModelForCausalLM

from data import PackedDataset


def main():
    dist.init_process_group("cpu:gloo,cuda:nccl")
    rank, world = dist.get_rank(), dist.get_world_size()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    mesh = init_device_mesh("cuda", (world,))
    model = AutoModelForCausalLM.from_pretrained("gpt2")
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16)
    for block in model.transformer.h:
        fully_shard(block, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    optim = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)
    ds = PackedDataset("tokens.bin", 1024)
    sampler = DistributedSampler(ds, world, rank, seed=1)
    dl = DataLoader(ds, batch_size=4, sampler=sampler, pin_memory=True)
    step = 0
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for batch in dl:
            ids = batch.to(device, non_blocking=True)
            loss = model(input_ids=ids, labels=ids).loss
            loss.backward()
            optim.step()
            optim.zero_grad()
            step += 1
            if step % 20 == 0:
                avg = loss.detach().float()
                dist.all_reduce(avg, op=dist.ReduceOp.AVG)
                if rank == 0:
                    print(step, avg.item())
            if step % 1000 == 0 and rank == 0:
                m, o = get_state_dict(model, optim)
                dcp.save({"model": m, "optim": o}, checkpoint_id=f"ckpt/{step}")
    dist.destroy_process_group()


main()
