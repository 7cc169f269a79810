"""The hardware of this machine, for a site whose node is this machine."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

import msgspec

from runner.model.site import NodeShape, Site

# Without GPUs a rank is an ordinary process: as many as a DGX A100 has GPUs, or one for each CPU if there are more.
RANKS_WITHOUT_GPUS = 8


@dataclass(frozen=True)
class Machine:
    """One machine.

    Attributes:
        cpus: hardware threads that this process may use.
        memory_mb: all of it, MiB.
        gpus: NVIDIA GPUs that this user may open and that CUDA would show.
    """

    cpus: int
    memory_mb: int
    gpus: int


def observe(root: Path = Path("/")) -> Machine:
    """This machine, from /proc and /dev below ``root``. GPUs are found as the launcher does
    (gpu_runner_inside.launcher.binding): by the driver, and by a device file that can be opened.
    """
    minors = [
        match[1]
        for information in root.glob("proc/driver/nvidia/gpus/*/information")
        if (match := re.search(r"Device Minor:\s*(\d+)", _text(information)))
    ]
    gpus = sum(1 for minor in minors if os.access(root / f"dev/nvidia{minor}", os.R_OK | os.W_OK))
    memory = re.search(r"MemTotal:\s*(\d+) kB", _text(root / "proc/meminfo"))
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return Machine(
        cpus=len(os.sched_getaffinity(0)),
        memory_mb=int(memory[1]) // 1024 if memory else 1,
        gpus=gpus if visible is None else min(gpus, len([entry for entry in visible.split(",") if entry.strip()])),
    )


def gpu_uuids(root: Path = Path("/")) -> frozenset[str]:
    """The UUIDs of this machine's NVIDIA GPUs, as the driver lists them, visible to CUDA or not."""
    texts = (_text(information) for information in root.glob("proc/driver/nvidia/gpus/*/information"))
    return frozenset(match[1] for text in texts if (match := re.search(r"GPU UUID:\s*(GPU-[0-9a-fA-F-]+)", text)))


def gpu_driver(root: Path = Path("/")) -> str:
    """What NVIDIA's driver says of its version, for comparing; empty where there is none."""
    return _text(root / "proc/driver/nvidia/version").partition("\n")[0]


def fit_to_machine(site: Site, machine: Machine) -> Site:
    """The site with this machine as its only node; without GPUs, also with the site's values for that case."""
    gpus = machine.gpus or max(RANKS_WITHOUT_GPUS, machine.cpus)
    node = NodeShape(
        cores=machine.cpus,
        memory_mb=machine.memory_mb,
        gpus=gpus,
        gpu_model="NVIDIA GPU" if machine.gpus else "rank on CPUs",
        count=1,
    )
    if machine.gpus:
        return msgspec.structs.replace(site, node=node)
    bare = site.without_gpus
    return msgspec.structs.replace(
        site,
        node=node,
        device="cpu",
        demonstration=bare.demonstration,
        image_tags={**site.image_tags, **bare.image_tags},
        env={**site.env, **bare.env},
        options={**site.options, **bare.options},
    )


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
