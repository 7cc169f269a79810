"""Horovod PyTorch: a trainer class, argparse, gradient accumulation."""
import argparse
import os

import horovod.torch as hvd
import torch
import torch.nn as nn
import torch.nn.functional as F
import torch.optim as optim
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler
from torchvision import datasets, models, transforms


def parse_args():
    parser = argparse.ArgumentParser()
    parser.add_argument("--train-dir", default=os.path.expanduser("~/imagenet/train"))
    parser.add_argument("--val-dir", default=os.path.expanduser("~/imagenet/validation"))
    parser.add_argument("--checkpoint-format", default="./checkpoint-{epoch}.pth.tar")
    parser.add_argument("--batches-per-allreduce", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--epochs", type=int, default=90)
    parser.add_argument("--base-lr", type=float, default=0.0125)
    parser.add_argument("--warmup-epochs", type=float, default=5)
    parser.add_argument("--no-cuda", action="store_true")
    return parser.parse_args()


class Metric:
    def __init__(self, name):
        self.name = name
        self.sum = torch.tensor(0.0)
        self.n = torch.tensor(0.0)

    def update(self, val):
        self.sum += hvd.allreduce(val.detach().cpu(), name=self.name)
        self.n += 1

    @property
    def avg(self):
        return self.sum / self.n


class Trainer:
    def __init__(self, args):
        self.args = args
        hvd.init()
        self.cuda = not args.no_cuda and torch.cuda.is_available()
        if self.cuda:
            torch.cuda.set_device(hvd.local_rank())
        self.verbose = hvd.rank() == 0
        self._build_data()
        self._build_model()

    def _build_data(self):
        t = transforms.Compose([transforms.RandomResizedCrop(224), transforms.ToTensor()])
        train = datasets.ImageFolder(self.args.train_dir, transform=t)
        val = datasets.ImageFolder(self.args.val_dir, transform=t)
        self.train_sampler = DistributedSampler(train, num_replicas=hvd.size(), rank=hvd.rank())
        self.val_sampler = DistributedSampler(val, num_replicas=hvd.size(), rank=hvd.rank())
        bs = self.args.batch_size * self.args.batches_per_allreduce
        self.train_loader = DataLoader(train, batch_size=bs, sampler=self.train_sampler, num_workers=4)
        self.val_loader = DataLoader(val, batch_size=bs, sampler=self.val_sampler)

    def _build_model(self):
        self.model = models.resnet50()
        lr_scaler = self.args.batches_per_allreduce
        if self.cuda:
            self.model.cuda()
        self.optimizer = optim.SGD(self.model.parameters(), lr=self.args.base_lr * lr_scaler, momentum=0.9)
        self.optimizer = hvd.DistributedOptimizer(
            self.optimizer,
            named_parameters=self.model.named_parameters(),
            backward_passes_per_step=self.args.batches_per_allreduce,
        )
        hvd.broadcast_parameters(self.model.state_dict(), root_rank=0)
        hvd.broadcast_optimizer_state(self.optimizer, root_rank=0)

    def adjust_lr(self, epoch, batch_idx):
        if epoch < self.args.warmup_epochs:
            epoch += float(batch_idx + 1) / len(self.train_loader)
            adj = epoch / self.args.warmup_epochs
        else:
            adj = 10 ** -(epoch // 30)
        for group in self.optimizer.param_groups:
            group["lr"] = self.args.base_lr * self.args.batches_per_allreduce * adj

    def train(self, epoch):
        self.model.train()
        self.train_sampler.set_epoch(epoch)
        loss_m = Metric("train_loss")
        for i, (data, target) in enumerate(self.train_loader):
            self.adjust_lr(epoch, i)
            if self.cuda:
                data, target = data.cuda(), target.cuda()
            self.optimizer.zero_grad()
            for k in range(0, len(data), self.args.batch_size):
                part = data[k : k + self.args.batch_size]
                loss = F.cross_entropy(self.model(part), target[k : k + self.args.batch_size])
                loss_m.update(loss)
                (loss / self.args.batches_per_allreduce).backward()
            self.optimizer.step()
        if self.verbose:
            print(f"epoch {epoch} loss {loss_m.avg.item():.4f}")

    def save(self, epoch):
        if hvd.rank() == 0:
            torch.save(
                {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()},
                self.args.checkpoint_format.format(epoch=epoch + 1),
            )

    def run(self):
        for epoch in range(self.args.epochs):
            self.train(epoch)
            self.save(epoch)


if __name__ == "__main__":
    Trainer(parse_args()).run()
