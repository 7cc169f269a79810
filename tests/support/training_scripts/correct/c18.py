"""Horovod PyTorch with AMP, a YAML config and resume."""
import sys
from pathlib import Path

import horovod.torch as hvd
import torch
import yaml
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, distributed

CFG = yaml.safe_load(Path(sys.argv[1]).read_text())


def get_loader(cfg):
    x, y = torch.load(cfg["data"]["path"])
    ds = TensorDataset(x, y)
    sampler = distributed.DistributedSampler(ds, hvd.size(), hvd.rank(), shuffle=True)
    return DataLoader(ds, cfg["data"]["batch_size"], sampler=sampler), sampler


def main(cfg):
    hvd.init()
    torch.manual_seed(cfg["seed"])
    device = torch.device("cuda", hvd.local_rank())
    torch.cuda.set_device(device)
    loader, sampler = get_loader(cfg)
    model = nn.Sequential(nn.Linear(100, 256), nn.ReLU(), nn.Linear(256, 10)).to(device)
    base_lr = cfg["optim"]["lr"]
    optimizer = torch.optim.AdamW(model.parameters(), lr=base_lr * hvd.size() ** 0.5)
    start_epoch = 0
    ckpt = Path(cfg["out"]) / "last.pt"
    if ckpt.exists() and hvd.rank() == 0:
        state = torch.load(ckpt, map_location="cpu")
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optim"])
        start_epoch = state["epoch"] + 1
    if hvd.rank() == 0:
        hvd.broadcast_object(model.state_dict(), root_rank=0)
    else:
        model.load_state_dict(hvd.broadcast_object(None, root_rank=0))
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    hvd.broadcast_parameters(model.state_dict(), 0)
    hvd.broadcast_optimizer_state(optimizer, 0)
    scaler = torch.cuda.amp.GradScaler()
    criterion = nn.CrossEntropyLoss()
    for epoch in range(start_epoch, cfg["optim"]["epochs"]):
        sampler.set_epoch(epoch)
        total, seen = 0.0, 0
        for x, y in loader:
            x, y = x.to(device, non_blocking=True), y.to(device, non_blocking=True)
            optimizer.zero_grad()
            with torch.cuda.amp.autocast():
                loss = criterion(model(x), y)
            scaler.scale(loss).backward()
            optimizer.synchronize()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            with optimizer.skip_synchronize():
                scaler.step(optimizer)
            scaler.update()
            total += loss.item() * len(x)
            seen += len(x)
        mean = hvd.allreduce(torch.tensor(total / seen), name="loss")
        if hvd.rank() != 0:
            continue
        print(epoch, float(mean))
        torch.save({"model": model.state_dict(), "optim": optimizer.state_dict(), "epoch": epoch}, ckpt)


main(CFG)
