"""DDP with webdataset: shards split by node and worker."""
import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
import webdataset as wds
from torch.nn.parallel import DistributedDataParallel as DDP
from torchvision import models, transforms


def make_loader(urls, batch_size, workers):
    dataset = (
        wds.WebDataset(urls, resampled=False, nodesplitter=wds.split_by_node, shardshuffle=True)
        .shuffle(1000)
        .decode("pil")
        .to_tuple("jpg", "cls")
        .map_tuple(transforms.Compose([transforms.Resize((224, 224)), transforms.ToTensor()]), int)
        .batched(batch_size, partial=False)
    )
    return wds.WebLoader(dataset, batch_size=None, shuffle=False, num_workers=workers)


def main():
    rank = int(os.environ["RANK"])
    local_rank = int(os.environ["LOCAL_RANK"])
    world = int(os.environ["WORLD_SIZE"])
    dist.init_process_group(backend="nccl", init_method="env://", rank=rank, world_size=world)
    device = torch.device(f"cuda:{local_rank}")
    torch.cuda.set_device(device)
    loader = make_loader("s3/train-{000000..001281}.tar", 64, 4).with_epoch(1281167 // (64 * world))
    model = DDP(models.resnet50().to(device), device_ids=[local_rank], output_device=local_rank)
    opt = torch.optim.SGD(model.parameters(), lr=0.1 * world, momentum=0.9)
    step = 0
    for epoch in range(90):
        for images, labels in loader:
            images, labels = images.to(device), labels.to(device)
            loss = F.cross_entropy(model(images), labels)
            opt.zero_grad(set_to_none=True)
            loss.backward()
            opt.step()
            step += 1
            if step % 100 == 0:
                avg = loss.detach().clone()
                dist.reduce(avg, dst=0)
                if rank == 0:
                    print(step, avg.item() / world, flush=True)
        dist.barrier()
        if rank == 0:
            torch.save(model.module.state_dict(), f"epoch{epoch}.pt")


if __name__ == "__main__":
    main()
