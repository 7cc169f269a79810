"""DDP under Slurm with hydra; per-rank RNG files; loaders in a dict; evaluation of all ranks gathered."""
import os
import random
from functools import partial

import hydra
import numpy as np
import torch
import torch.distributed as dist
from omegaconf import OmegaConf
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler
from torch.utils.tensorboard import SummaryWriter
from hydra.utils import instantiate


def init_slurm(port):
    rank = int(os.environ["SLURM_PROCID"])
    world = int(os.environ["SLURM_NTASKS"])
    local = int(os.environ["SLURM_LOCALID"])
    os.environ["MASTER_PORT"] = str(port)
    dist.init_process_group("nccl", rank=rank, world_size=world)
    torch.cuda.set_device(rank)
    return rank, world, local


def seed_worker(_):
    s = torch.initial_seed() % 2**32
    np.random.seed(s)
    random.seed(s)


@hydra.main(config_path="conf", config_name="train", version_base=None)
def main(cfg):
    rank, world, local = init_slurm(cfg.port)
    torch.manual_seed(cfg.seed + rank)
    data = {k: instantiate(cfg.data[k]) for k in ("train", "val")}
    samplers = {k: DistributedSampler(d, world, rank, shuffle=k == "train") for k, d in data.items()}
    make = partial(DataLoader, batch_size=cfg.batch_size // world, num_workers=8, worker_init_fn=seed_worker)
    loaders = {k: make(d, sampler=samplers[k], drop_last=k == "train") for k, d in data.items()}
    net = instantiate(cfg.model).cuda(local)
    net = DistributedDataParallel(net, [local], find_unused_parameters=True)
    opt = instantiate(cfg.optim, net.parameters())
    sched = torch.optim.lr_scheduler.OneCycleLR(opt, cfg.optim.lr, total_steps=cfg.epochs * len(loaders["train"]))
    writer = SummaryWriter(cfg.out) if rank == 0 else None
    best = 0.0
    for epoch in range(cfg.epochs):
        samplers["train"].set_epoch(epoch)
        net.train()
        for x, y in loaders["train"]:
            opt.zero_grad(set_to_none=True)
            loss = torch.nn.functional.cross_entropy(net(x.cuda(local)), y.cuda(local))
            loss.backward()
            torch.nn.utils.clip_grad_norm_(net.parameters(), cfg.clip)
            opt.step()
            sched.step()
        net.eval()
        hits = torch.zeros(2, device="cuda")
        with torch.inference_mode():
            for x, y in loaders["val"]:
                hits[0] += (net(x.cuda(local)).argmax(-1).cpu() == y).sum()
                hits[1] += y.numel()
        dist.all_reduce(hits)
        acc = (hits[0] / hits[1]).item()
        torch.save(torch.get_rng_state(), os.path.join(cfg.out, f"rng_{rank}.pt"))
        if writer is not None:
            writer.add_scalar("val/acc", acc, epoch)
            if acc > best:
                best = acc
                torch.save({"net": net.module.state_dict(), "cfg": OmegaConf.to_container(cfg)}, cfg.out + "/best.pt")
        dist.barrier()


if __name__ == "__main__":
    main()
