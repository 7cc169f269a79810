"""ImageNet-like training, everything in functions, resumed from a checkpoint."""
from pathlib import Path

import torch
from horovod import torch as H
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler
from torchvision import datasets, models, transforms


def is_chief() -> bool:
    return H.rank() == 0


def save(model, optimizer, epoch, where: Path):
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch}, where / f"{epoch}.pt")


def loaders(root, batch):
    world, me = H.size(), H.rank()
    made = []
    for part in ("train", "val"):
        data = datasets.ImageFolder(root / part, transforms.Compose([transforms.Resize(224), transforms.ToTensor()]))
        sampler = DistributedSampler(data, num_replicas=world, rank=me, shuffle=part == "train")
        made.append((DataLoader(data, batch, sampler=sampler, num_workers=4, pin_memory=True), sampler))
    return made


def warm(optimizer, base, step, per_epoch, epochs=5):
    epoch = step / per_epoch
    factor = 1.0 / H.size() * (epoch * (H.size() - 1) / epochs + 1) if epoch < epochs else 1.0
    for group in optimizer.param_groups:
        group["lr"] = base * H.size() * factor


def main():
    H.init()
    local = H.local_rank()
    torch.cuda.set_device(local)
    device = torch.device("cuda", local)
    root, out = Path("/data"), Path("out")
    (train, sampler), (val, _) = loaders(root, 128)
    model = models.resnet50().to(device)
    base = 0.0125
    optimizer = torch.optim.SGD(model.parameters(), lr=base * H.size(), momentum=0.9)
    start = 0
    latest = sorted(out.glob("*.pt"))
    if latest and is_chief():
        kept = torch.load(latest[-1], map_location=device)
        model.load_state_dict(kept["model"])
        optimizer.load_state_dict(kept["optimizer"])
        start = kept["epoch"] + 1
    start = H.broadcast(torch.tensor(start), root_rank=0, name="start").item()
    optimizer = H.DistributedOptimizer(
        optimizer, named_parameters=model.named_parameters(), compression=H.Compression.fp16
    )
    H.broadcast_parameters(model.state_dict(), root_rank=0)
    H.broadcast_optimizer_state(optimizer, root_rank=0)
    loss_of = torch.nn.CrossEntropyLoss()
    for epoch in range(start, 90):
        sampler.set_epoch(epoch)
        model.train()
        for number, (images, labels) in enumerate(train):
            warm(optimizer, base, epoch * len(train) + number, len(train))
            optimizer.zero_grad()
            loss = loss_of(model(images.to(device)), labels.to(device))
            loss.backward()
            optimizer.step()
        model.eval()
        good = torch.zeros(2)
        with torch.no_grad():
            for images, labels in val:
                guess = model(images.to(device)).argmax(1).cpu()
                good += torch.tensor([float((guess == labels).sum()), float(len(labels))])
        good = H.allreduce(good, name="good", op=H.Sum)
        if is_chief():
            print(epoch, (good[0] / good[1]).item())
        save(model, optimizer, epoch, out)


main()
