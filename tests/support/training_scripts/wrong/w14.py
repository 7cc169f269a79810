import argparse
import os

import horovod.torch as hvd
import torch
import torch.nn as nn
import torch.nn.functional as F
import torch.optim as optim
from torchvision import datasets, transforms

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=64)
parser.add_argument("--epochs", type=int, default=5)
parser.add_argument("--lr", type=float, default=0.01)
parser.add_argument("--checkpoint-format", default="./checkpoint-{epoch}.pth.tar")


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 10, kernel_size=5)
        self.fc1 = nn.Linear(1440, 10)

    def forward(self, x):
        x = F.relu(F.max_pool2d(self.conv1(x), 2))
        return F.log_softmax(self.fc1(x.flatten(1)), dim=1)


def train(epoch):
    model.train()
    train_sampler.set_epoch(epoch)
    for batch_idx, (data, target) in enumerate(train_loader):
        data, target = data.cuda(), target.cuda()
        optimizer.zero_grad()
        loss = F.nll_loss(model(data), target)
        loss.backward()
        optimizer.step()
        if batch_idx % 10 == 0 and hvd.rank() == 0:
            print(f"epoch {epoch} loss {loss.item():.4f}")


def test():
    model.eval()
    total, right = 0.0, 0.0
    with torch.no_grad():
        for data, target in test_loader:
            data, target = data.cuda(), target.cuda()
            out = model(data)
            total += F.nll_loss(out, target, reduction="sum").item()
            right += out.argmax(1).eq(target).float().sum().item()
    total /= len(test_sampler)
    right /= len(test_sampler)
    if hvd.rank() == 0:
        print(f"test: {total:.4f} {100 * right:.2f} %")


if __name__ == "__main__":
    args = parser.parse_args()
    hvd.init()
    torch.manual_seed(42)
    torch.cuda.set_device(hvd.local_rank())
    torch.set_num_threads(1)
    train_dataset = datasets.MNIST(f"data-{hvd.rank()}", train=True, download=True, transform=transforms.ToTensor())
    train_sampler = torch.utils.data.distributed.DistributedSampler(
        train_dataset, num_replicas=hvd.size(), rank=hvd.rank()
    )
    train_loader = torch.utils.data.DataLoader(train_dataset, batch_size=args.batch_size, sampler=train_sampler)
    test_dataset = datasets.MNIST(f"data-{hvd.rank()}", train=False, transform=transforms.ToTensor())
    test_sampler = torch.utils.data.distributed.DistributedSampler(
        test_dataset, num_replicas=hvd.size(), rank=hvd.rank()
    )
    test_loader = torch.utils.data.DataLoader(test_dataset, batch_size=1000, sampler=test_sampler)
    model = Net().cuda()
    optimizer = optim.SGD(model.parameters(), lr=args.lr * hvd.size(), momentum=0.5)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    for epoch in range(1, args.epochs + 1):
        train(epoch)
        test()
        if hvd.rank() == 0:
            torch.save({"model": model.state_dict()}, args.checkpoint_format.format(epoch=epoch))
