"""The device's events against the host's clock, over stretches of work that keep the device busy."""

from __future__ import annotations

import time
from typing import Any

import torch
from place import device_of, kind_of, wait_for

_SIDE = {"cuda": 4096, "cpu": 256}
_STRETCH_S = {False: 1.0, True: 0.2}  # by `short`
_STRETCHES = 5


def run(wanted: str, *, short: bool) -> tuple[str, dict[str, Any]]:
    """Seconds of each stretch by both clocks. On a processor both are the host's."""
    kind = kind_of(wanted)
    device = device_of(kind, 0)
    a = torch.randn(_SIDE[kind], _SIDE[kind], device=device)
    count = _count_for(_STRETCH_S[short], a, device)
    pairs = [_stretch(a, count, device) for _ in range(_STRETCHES)]
    return kind, {"event_s": [pair[0] for pair in pairs], "wall_s": [pair[1] for pair in pairs]}


def _count_for(seconds: float, a: torch.Tensor, device: torch.device) -> int:
    """Products that take about as long; the first ones, which load libraries and raise clocks, are not counted."""
    for _ in range(3):
        a @ a
    wait_for(device)
    began = time.perf_counter()
    for _ in range(10):
        a @ a
    wait_for(device)
    return max(round(10 * seconds / (time.perf_counter() - began)), 10)


def _stretch(a: torch.Tensor, count: int, device: torch.device) -> tuple[float, float]:
    wait_for(device)
    began = time.perf_counter()
    if device.type == "cpu":
        other = time.monotonic()
        for _ in range(count):
            a @ a
        return time.monotonic() - other, time.perf_counter() - began
    first, last = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    first.record()
    for _ in range(count):
        a @ a
    last.record()
    wait_for(device)
    wall_s = time.perf_counter() - began
    return first.elapsed_time(last) / 1000.0, wall_s
