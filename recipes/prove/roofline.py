"""How fast the device multiplies matrices and copies memory, and how much one image of the main job needs of it."""

from __future__ import annotations

import time
from typing import Any, Callable

import torch
from models import MODELS
from place import device_of, kind_of, wait_for
from torch import nn

_SIDE = {"cuda": 8192, "cpu": 512}
_COPY_BYTES = {"cuda": 1 << 30, "cpu": 1 << 24}
_GROUPS = 5
_GROUP_S = {False: 1.0, True: 0.1}  # by `short`


def run(wanted: str, *, short: bool, model: str, image_size: int) -> tuple[str, dict[str, Any]]:
    """Floating-point operations and bytes a second: of each the median of five groups."""
    kind = kind_of(wanted)
    device = device_of(kind, 0)
    group_s = _GROUP_S[short]
    return kind, {
        "products": {name: _product(name, device, group_s) for name in _precisions(kind)},
        "copy_bytes_per_s": _copy(device, group_s),
        "flop_per_image": _flop(model, image_size),
        "model": model,
        "image_px": image_size,
    }


def _precisions(kind: str) -> list[str]:
    if kind == "cpu":
        return ["fp32", "amp-bf16"]
    modern = torch.cuda.get_device_capability()[0] >= 8  # Ampere
    return ["fp32", "tf32", "amp-bf16", "amp-fp16"] if modern else ["fp32", "amp-fp16"]


def _product(precision: str, device: torch.device, group_s: float) -> float:
    """2 n^3 operations for a product of two n x n matrices."""
    torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
    dtype = {"amp-bf16": torch.bfloat16, "amp-fp16": torch.float16}.get(precision, torch.float32)
    side = _SIDE[device.type]
    a, b = (torch.randn(side, side, device=device, dtype=dtype) for _ in range(2))
    out = torch.empty_like(a)

    def multiply() -> None:
        torch.mm(a, b, out=out)

    return 2.0 * side**3 / _seconds(multiply, device, group_s)


def _copy(device: torch.device, group_s: float) -> float:
    """Bytes read and bytes written, both counted."""
    source = torch.zeros(_COPY_BYTES[device.type], dtype=torch.uint8, device=device)
    target = torch.empty_like(source)

    def copy() -> None:
        target.copy_(source)

    return 2.0 * source.numel() / _seconds(copy, device, group_s)


def _seconds(call: Callable[[], None], device: torch.device, group_s: float) -> float:
    """Of one call: the median over groups that are long against what starting and ending them takes."""

    def group(count: int) -> float:
        wait_for(device)
        began = time.perf_counter()
        for _ in range(count):
            call()
        wait_for(device)
        return (time.perf_counter() - began) / count

    group(3)  # loads libraries, raises clocks
    count = max(round(group_s / group(3)), 3)
    return sorted(group(count) for _ in range(_GROUPS))[_GROUPS // 2]


def _flop(model: str, image_size: int) -> int | None:
    """Of one image, forward and backward, as torch counts them: 2 for a multiplication with its addition.

    None before torch 2.1, which has no such counter.
    """
    try:
        from torch.utils.flop_counter import FlopCounterMode
    except ImportError:
        return None
    network = MODELS[model]()
    with FlopCounterMode(display=False) as counter:
        loss = nn.functional.cross_entropy(network(torch.zeros(2, 3, image_size, image_size)), torch.tensor([0, 1]))
        loss.backward()
    return int(counter.get_total_flops()) // 2
