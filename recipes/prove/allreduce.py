"""Horovod's allreduce of tensors on this rank's device: right sums, how fast, and the gradient hooks.

Hooks are registered at size 1 as well (``HOROVOD_ELASTIC=1``, read by Horovod's Python side alone).
"""

from __future__ import annotations

import os
import time
from typing import Any

import horovod.torch as hvd
import torch
from place import device_of, kind_of, wait_for

_PERIOD = 97  # values that repeat at no power of two
_LENGTHS = {False: (1, 1000, 1 << 18, 1 << 24, 1 << 26), True: (1, 1000, 1 << 18)}  # of float32, by `short`
_REPEATS = {False: 20, True: 5}


def run(wanted: str, *, short: bool) -> tuple[str, dict[str, Any]]:
    """Sums that can be known beforehand, then a model of which each rank has other data."""
    hvd.init()
    kind = kind_of(wanted)
    device = device_of(kind, hvd.local_rank())
    facts: dict[str, Any] = {
        "size": hvd.size(),
        "nccl_built": bool(hvd.nccl_built()),
        "sums": [_sum(length, device, _REPEATS[short]) for length in _LENGTHS[short]],
        **_hooks(device),
    }
    hvd.shutdown()
    return kind, facts


def _sum(length: int, device: torch.device, repeats: int) -> dict[str, Any]:
    """Rank r gives (i mod 97) + r, so the sum of n ranks is n (i mod 97) + n (n - 1) / 2: exact in float32."""
    rank, size = hvd.rank(), hvd.size()
    pattern = (torch.arange(length, device=device) % _PERIOD).to(torch.float32)
    expected = pattern * size + size * (size - 1) / 2
    mine = pattern + rank
    right, device_kept, times = True, True, []
    for number in range(repeats + 2):
        hvd.barrier()
        wait_for(device)
        began = time.perf_counter()
        reduced = hvd.allreduce(mine, op=hvd.Sum, name=f"prove.{length}")
        wait_for(device)
        if number >= 2:
            times.append(time.perf_counter() - began)
        right = right and bool(torch.equal(reduced, expected))
        device_kept = device_kept and reduced.device == device
    return {
        "bytes": 4 * length,
        "right": right,
        "on_device": device_kept,
        "median_s": sorted(times)[len(times) // 2],
    }


def _hooks(device: torch.device) -> dict[str, Any]:
    """Three steps of a small model: its gradients go through hooks, and parameters stay equal on all ranks."""
    os.environ["HOROVOD_ELASTIC"] = "1"
    torch.manual_seed(1)
    model = torch.nn.Linear(256, 256).to(device)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1), named_parameters=model.named_parameters()
    )
    data = torch.randn(32, 256, generator=torch.Generator().manual_seed(1 + hvd.rank())).to(device)
    first = model.weight.detach().clone()
    in_flight = 0
    for _ in range(3):
        optimizer.zero_grad()
        model(data).square().mean().backward()
        in_flight = max(in_flight, len(getattr(optimizer, "_handles", ())))  # allreduces that the hooks began
        optimizer.step()
    checks = hvd.allgather(model.weight.detach().double().sum().reshape(1), name="prove.weights")
    return {
        "hooked_gradients": in_flight,
        "weights_equal": bool((checks == checks[0]).all()),
        "weights_moved": not bool(torch.equal(first, model.weight.detach())),
    }
