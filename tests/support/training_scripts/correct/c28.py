"""Hydra configuration, DDP under srun or torchrun, nanoGPT-like."""
import math
import os

import hydra
import numpy as np
import torch
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf
from torch.distributed import all_reduce, destroy_process_group, get_rank, get_world_size, init_process_group
from torch.nn.parallel import DistributedDataParallel as DDP


def get_env(*names, default=0):
    for n in names:
        if n in os.environ:
            return int(os.environ[n])
    return default


def get_batch(data, block, batch, device, generator):
    ix = torch.randint(len(data) - block, (batch,), generator=generator)
    x = torch.stack([torch.from_numpy(data[i:i + block].astype(np.int64)) for i in ix])
    y = torch.stack([torch.from_numpy(data[i + 1:i + 1 + block].astype(np.int64)) for i in ix])
    return x.to(device), y.to(device)


def get_lr(it, cfg):
    if it < cfg.warmup:
        return cfg.lr * it / cfg.warmup
    ratio = (it - cfg.warmup) / (cfg.max_iters - cfg.warmup)
    return cfg.min_lr + 0.5 * (1 + math.cos(math.pi * ratio)) * (cfg.lr - cfg.min_lr)


@hydra.main(version_base=None, config_path="conf", config_name="config")
def main(cfg: DictConfig) -> None:
    ddp = get_env("WORLD_SIZE", "SLURM_NTASKS", default=1) > 1
    if ddp:
        local_rank = get_env("LOCAL_RANK", "SLURM_LOCALID")
        init_process_group(cfg.backend)
        rank, world = get_rank(), get_world_size()
        device = f"cuda:{local_rank}"
        torch.cuda.set_device(device)
        master = rank == 0
        seed_offset = rank
        accum = cfg.accum // world
    else:
        rank, world, master, seed_offset, device, accum = 0, 1, True, 0, "cuda", cfg.accum
    generator = torch.Generator().manual_seed(1337 + seed_offset)
    torch.manual_seed(1337 + seed_offset)
    if master:
        os.makedirs(cfg.out, exist_ok=True)
        OmegaConf.save(cfg, os.path.join(cfg.out, "config.yaml"))
    data = np.memmap(cfg.train_bin, dtype=np.uint16, mode="r")
    model = instantiate(cfg.model).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=cfg.lr, betas=(0.9, 0.95))
    if ddp:
        model = DDP(model, device_ids=[local_rank])
    raw = model.module if ddp else model
    for it in range(cfg.max_iters):
        for group in optimizer.param_groups:
            group["lr"] = get_lr(it, cfg)
        for micro in range(accum):
            if ddp:
                model.require_backward_grad_sync = micro == accum - 1
            x, y = get_batch(data, cfg.block, cfg.batch, device, generator)
            _, loss = model(x, y)
            (loss / accum).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), cfg.clip)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if it % cfg.log_every == 0:
            shown = loss.detach().clone()
            if ddp:
                all_reduce(shown)
                shown /= world
            if master:
                print(f"iter {it}: loss {shown.item():.4f}")
        if master and it and it % cfg.save_every == 0:
            torch.save({"model": raw.state_dict(), "optimizer": optimizer.state_dict(), "iter": it},
                       os.path.join(cfg.out, "ckpt.pt"))
    if ddp:
        destroy_process_group()


if __name__ == "__main__":
    main()
