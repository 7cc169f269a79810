"""Each part of a GPU (MIG) that the driver lists: a process of its own computes on it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from typing import Any

from place import kind_of

# What lies where the job starts may be another user's.
_CHILD = """
import sys
sys.path[:] = filter(None, sys.path)
import json, torch
ones = torch.ones(1024, 1024, device="cuda")
properties = torch.cuda.get_device_properties(0)
right = float((ones @ ones).sum().item()) == 1024.0**3
print(json.dumps({"devices": torch.cuda.device_count(), "memory_bytes": properties.total_memory, "computes": right}))
"""


def run(wanted: str, *, short: bool) -> tuple[str, dict[str, Any]]:  # noqa: ARG001 -- as every step
    """By ``nvidia-smi -L``, which lists them with their UUIDs."""
    listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=60, check=True).stdout
    return kind_of(wanted), {"slices": [_slice(uuid) for uuid in re.findall(r"UUID: (MIG-[\w/-]+)", listed)]}


def _slice(uuid: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-c", _CHILD], env={**os.environ, "CUDA_VISIBLE_DEVICES": uuid}, capture_output=True,
        text=True, timeout=120, check=False,
    )  # fmt: skip
    lines = done.stderr.strip().splitlines()
    if done.returncode != 0:
        return {"uuid": uuid, "problem": lines[-1] if lines else f"exit {done.returncode}"}
    return {"uuid": uuid, "problem": "", **json.loads(done.stdout)}
