"""Two networks and two optimizers; legacy --local_rank."""
import argparse

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torchvision import datasets, transforms, utils

ap = argparse.ArgumentParser()
ap.add_argument("--local_rank", "--local-rank", type=int, default=0)
ap.add_argument("--lr", type=float, default=2e-4)
opt = ap.parse_args()

dist.init_process_group(backend="nccl")
torch.cuda.set_device(opt.local_rank)
dev = torch.device("cuda", opt.local_rank)
G = nn.Sequential(nn.Linear(100, 784), nn.Tanh()).to(dev)
D = nn.Sequential(nn.Linear(784, 1)).to(dev)
class Both(nn.Module):
    def __init__(self, g, d):
        super().__init__()
        self.g, self.d = g, d

    def forward(self, z):
        return self.g(z)


nets = {"g": G, "d": D}
for name in nets:
    nets[name] = DDP(nets[name], device_ids=[opt.local_rank])
G, D = nets["g"], nets["d"]
opt_g = torch.optim.Adam(G.parameters(), lr=opt.lr, betas=(0.5, 0.999))
opt_d = torch.optim.Adam(D.parameters(), lr=opt.lr, betas=(0.5, 0.999))
ds = datasets.MNIST(".", transform=transforms.ToTensor())
sampler = torch.utils.data.distributed.DistributedSampler(ds)
loader = torch.utils.data.DataLoader(ds, 64, sampler=sampler, drop_last=True)
bce = nn.BCEWithLogitsLoss()
ema = {k: v.clone() for k, v in G.module.state_dict().items()}
for epoch in range(100):
    sampler.set_epoch(epoch)
    for real, _ in loader:
        real = real.flatten(1).to(dev)
        z = torch.randn(len(real), 100, device=dev)
        ones, zeros = torch.ones(len(real), 1, device=dev), torch.zeros(len(real), 1, device=dev)
        fake = G(z)
        d_loss = bce(D(real), ones) + bce(D(fake.detach()), zeros)
        opt_d.zero_grad()
        d_loss.backward()
        opt_d.step()
        g_loss = bce(D(fake), ones)
        opt_g.zero_grad()
        g_loss.backward()
        opt_g.step()
        for k, v in G.module.state_dict().items():
            ema[k].mul_(0.999).add_(v, alpha=0.001)
    if dist.get_rank() == 0:
        with torch.no_grad():
            utils.save_image(G.module(torch.randn(16, 100, device=dev)).view(-1, 1, 28, 28), f"{epoch}.png")
        torch.save({"G": G.module.state_dict(), "ema": ema}, "gan.pt")
