"""DDP: rank 0 alone evaluates with model.module, the others wait; data downloaded on local rank 0 first."""
import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, random_split
from torchvision import datasets, transforms

RANK = int(os.environ["RANK"])
LOCAL = int(os.environ["LOCAL_RANK"])
WORLD = int(os.environ["WORLD_SIZE"])


def get_data():
    if LOCAL != 0:
        dist.barrier()
    full = datasets.MNIST("data", train=True, download=True, transform=transforms.ToTensor())
    if LOCAL == 0:
        dist.barrier()
    return random_split(full, [50000, 10000], generator=torch.Generator().manual_seed(0))


@torch.no_grad()
def evaluate(model, loader):
    model.eval()
    right = sum((model(x.to(LOCAL)).argmax(1).cpu() == y).sum().item() for x, y in loader)
    return right / len(loader.dataset)


def main():
    dist.init_process_group("nccl", device_id=torch.device("cuda", LOCAL))
    torch.cuda.set_device(LOCAL)
    torch.backends.cudnn.benchmark = True
    train_set, val_set = get_data()
    train_loader = DataLoader(train_set, 64, sampler=DistributedSampler(train_set, drop_last=True), num_workers=4)
    val_loader = DataLoader(val_set, 512) if RANK == 0 else None
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(784, 10)).to(LOCAL)
    ddp = DDP(torch.compile(model), device_ids=[LOCAL])
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.01 * WORLD)
    ddp = model
    warmup = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=5)
    for epoch in range(10):
        train_loader.sampler.set_epoch(epoch)
        ddp.train()
        total = torch.zeros((), device=LOCAL)
        for x, y in train_loader:
            loss = torch.nn.functional.cross_entropy(ddp(x.to(LOCAL)), y.to(LOCAL))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.detach()
        warmup.step()
        dist.reduce(total, 0, op=dist.ReduceOp.SUM)
        if RANK == 0:
            acc = evaluate(ddp, val_loader)
            print(f"{epoch=} loss={total.item() / len(train_loader) / WORLD:.3f} {acc=:.3f}")
            torch.save(ddp.state_dict(), "model.pt")
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
