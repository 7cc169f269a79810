"""DDP with a registry of models, an engine with hooks, and its own sampler."""
import contextlib
import logging
import os

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Sampler

from models import build_model
from datasets_local import build_dataset

log = logging.getLogger(__name__)


class InfiniteSampler(Sampler):
    def __init__(self, size, seed=0):
        self.size, self.seed = size, seed
        self.rank = dist.get_rank()
        self.world_size = dist.get_world_size()

    def __iter__(self):
        g = torch.Generator()
        g.manual_seed(self.seed)
        k = 0
        while True:
            for i in torch.randperm(self.size, generator=g).tolist():
                if k % self.world_size == self.rank:
                    yield i
                k += 1


class Hook:
    def after_step(self, engine):
        pass


class CheckpointHook(Hook):
    def __init__(self, every, folder):
        self.every, self.folder = every, folder

    def after_step(self, engine):
        if engine.step % self.every:
            return
        torch.save(engine.state(), os.path.join(self.folder, f"{engine.step}.pth"))


class LogHook(Hook):
    def after_step(self, engine):
        if engine.step % 50 == 0:
            loss = engine.loss.detach().clone()
            dist.all_reduce(loss, op=dist.ReduceOp.AVG)
            if engine.is_main:
                log.info("%d %.4f", engine.step, loss.item())


class Engine:
    def __init__(self, cfg):
        dist.init_process_group(cfg.get("backend", "nccl"))
        self.local = int(os.environ.get("LOCAL_RANK", 0))
        torch.cuda.set_device(self.local)
        self.is_main = dist.get_rank() == 0
        self.cfg = cfg
        data = build_dataset(cfg["data"])
        self.loader = iter(DataLoader(data, cfg["batch"], sampler=InfiniteSampler(len(data)), num_workers=4))
        net = build_model(cfg["model"]).cuda()
        self.net = torch.nn.parallel.DistributedDataParallel(net, device_ids=[self.local])
        self.opt = torch.optim.AdamW(self.net.parameters(), lr=cfg["lr"])
        self.scaler = torch.cuda.amp.GradScaler(enabled=cfg["amp"])
        self.hooks = [LogHook(), CheckpointHook(1000, cfg["out"])]
        self.step = 0

    def state(self):
        return {"net": self.net.module.state_dict(), "opt": self.opt.state_dict(), "step": self.step}

    def run_step(self):
        self.opt.zero_grad()
        for k in range(self.cfg["accum"]):
            x, y = next(self.loader)
            ctx = self.net.no_sync() if k < self.cfg["accum"] - 1 else contextlib.nullcontext()
            with ctx, torch.cuda.amp.autocast(enabled=self.cfg["amp"]):
                self.loss = torch.nn.functional.cross_entropy(self.net(x.cuda()), y.cuda()) / self.cfg["accum"]
            self.scaler.scale(self.loss).backward()
        self.scaler.step(self.opt)
        self.scaler.update()
        self.step += 1

    def run(self):
        while self.step < self.cfg["steps"]:
            self.run_step()
            for h in self.hooks:
                h.after_step(self)


if __name__ == "__main__":
    Engine({"data": "x", "model": "y", "batch": 8, "lr": 1e-4, "amp": True, "accum": 2, "steps": 10**5, "out": "o"}).run()
