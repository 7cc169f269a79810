"""Where a rank of a step computes."""

from __future__ import annotations

import os
import sys

import torch


def kind_of(wanted: str) -> str:
    """``cuda`` or ``cpu``; ``auto`` takes a GPU where torch sees one."""
    return wanted if wanted != "auto" else "cuda" if torch.cuda.is_available() else "cpu"


def device_of(kind: str, local_rank: int) -> torch.device:
    """This rank's own device, made the current one.

    Raises:
        SystemExit: a GPU was requested, and this rank sees none for it.
    """
    if kind == "cpu":
        return torch.device("cpu")
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    index = 0 if count == 1 else local_rank
    if index >= count:
        shown = os.environ.get("CUDA_VISIBLE_DEVICES")
        sys.exit(f"local rank {local_rank} needs GPU {index}, but sees {count} (CUDA_VISIBLE_DEVICES={shown!r})")
    torch.cuda.set_device(index)
    return torch.device("cuda", index)


def wait_for(device: torch.device) -> None:
    """Until all that is queued on the device is done."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
