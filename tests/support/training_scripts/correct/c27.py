import argparse
import os
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torchvision
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler


def setup():
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    local_rank = int(os.environ["LOCAL_RANK"])
    if torch.cuda.is_available():
        torch.cuda.set_device(local_rank)
    return local_rank, dist.get_rank(), dist.get_world_size()


def reduce_mean(t, n):
    t = t.clone()
    dist.all_reduce(t, op=dist.ReduceOp.SUM)
    return t / n


def get_loaders(args, world, rank):
    tr = torchvision.transforms.ToTensor()
    train = torchvision.datasets.FakeData(10000, (3, 64, 64), 10, transform=tr)
    test = torchvision.datasets.FakeData(1000, (3, 64, 64), 10, transform=tr)
    ts = DistributedSampler(train, world, rank, shuffle=True, drop_last=True)
    vs = DistributedSampler(test, world, rank, shuffle=False)
    kw = dict(num_workers=args.workers, pin_memory=True)
    return DataLoader(train, batch_size=args.batch // world, sampler=ts, **kw), DataLoader(test, args.batch // world, sampler=vs, **kw)


def train_one_epoch(model, loader, opt, scaler, criterion, device, accum):
    model.train()
    opt.zero_grad(set_to_none=True)
    for i, (x, y) in enumerate(loader):
        x, y = x.to(device, non_blocking=True), y.to(device, non_blocking=True)
        sync = (i + 1) % accum == 0
        ctx = torch.autograd.set_grad_enabled(True) if sync else model.no_sync()
        with ctx, torch.autocast(device.type, dtype=torch.float16):
            loss = criterion(model(x), y) / accum
            scaler.scale(loss).backward()
        if sync:
            scaler.unscale_(opt)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(opt)
            scaler.update()
            opt.zero_grad(set_to_none=True)


@torch.inference_mode()
def evaluate(model, loader, device, world):
    model.eval()
    hits = torch.zeros(1, device=device)
    total = torch.zeros(1, device=device)
    for x, y in loader:
        out = model(x.to(device))
        hits += (out.argmax(-1) == y.to(device)).sum()
        total += y.numel()
    return (reduce_mean(hits, world) / reduce_mean(total, world)).item()


def main(argv=None):
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", default=3, type=int)
    ap.add_argument("--batch", default=256, type=int, help="global batch")
    ap.add_argument("--workers", default=4, type=int)
    ap.add_argument("--accum", default=2, type=int)
    ap.add_argument("--lr", default=0.1, type=float)
    ap.add_argument("--resume", default="")
    args = ap.parse_args(argv)

    local_rank, rank, world = setup()
    device = torch.device(f"cuda:{local_rank}" if torch.cuda.is_available() else "cpu")
    net = torchvision.models.resnet34(num_classes=10).to(device)
    net = nn.SyncBatchNorm.convert_sync_batchnorm(net)
    ddp = DDP(net, device_ids=[local_rank] if device.type == "cuda" else None)
    opt = torch.optim.SGD(ddp.parameters(), lr=args.lr, momentum=0.9)
    sched = torch.optim.lr_scheduler.OneCycleLR(opt, args.lr, total_steps=args.epochs)
    scaler = torch.amp.GradScaler(device.type)
    start = 0
    if args.resume:
        ck = torch.load(args.resume, map_location=device)
        ddp.module.load_state_dict(ck["model"])
        opt.load_state_dict(ck["opt"])
        start = ck["epoch"] + 1
    train_loader, test_loader = get_loaders(args, world, rank)
    for epoch in range(start, args.epochs):
        t0 = time.perf_counter()
        train_loader.sampler.set_epoch(epoch)
        train_one_epoch(ddp, train_loader, opt, scaler, nn.CrossEntropyLoss(), device, args.accum)
        sched.step()
        acc = evaluate(ddp, test_loader, device, world)
        if rank == 0:
            print(f"{epoch} acc={acc:.3f} {time.perf_counter() - t0:.1f}s", flush=True)
            torch.save({"model": ddp.module.state_dict(), "opt": opt.state_dict(), "epoch": epoch}, "last.pt")
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
