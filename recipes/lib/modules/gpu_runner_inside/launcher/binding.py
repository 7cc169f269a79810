"""GPUs of this node and the processors near them. ``root`` is ``/`` but in tests.

Sources: ``/proc/driver/nvidia/gpus/BUS/information`` (NVIDIA driver: UUID and device minor); where it is not there
(WSL2, gVisor), or names no UUID (a driver that is not initialised), the driver's libraries; and the kernel's
``/sys/bus/pci/devices/BUS/local_cpulist`` and ``/sys/devices/system/cpu/cpuN/topology/thread_siblings_list``.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, FrozenSet, Mapping, Sequence

from gpu_runner_inside.node import cuda_driver

Cpus = FrozenSet[int]


@dataclass(frozen=True)
class Gpu:
    """A GPU as the driver describes it. ``bus``: its PCI address, lower case, empty where unknown."""

    bus: str
    uuid: str
    near: Cpus


@dataclass(frozen=True)
class Device:
    """What a task computes on, as far as its launcher sees.

    Attributes:
        kind: ``cuda`` or ``cpu``. index: among what CUDA shows; uuid: of the GPU, or of a part of one.
        count: how many devices CUDA shows.
        gpu: the whole GPU; None for a part of one, and for none.
    """

    kind: str
    index: int | None
    uuid: str | None
    count: int
    gpu: Gpu | None


@dataclass(frozen=True)
class Binding:
    """Where a task shall run. ``cpus`` is empty when it stays as it is; ``why`` says why in either case."""

    cpus: Cpus
    why: str


def gpus(root: str = "/") -> tuple[Gpu, ...]:
    """The GPUs that this task can open, in the order of their PCI addresses; empty without an NVIDIA driver."""
    near = "sys/bus/pci/devices/{}/local_cpulist"
    return tuple(
        Gpu(each["bus"], each["uuid"], parse(_text(os.path.join(root, near.format(each["bus"])))))
        for each in _listed(root)["gpus"]
        if each["uuid"] and each["opens"]
    )


def main(root: str) -> None:
    """Print all that the driver lists, opened or not, as JSON: ``driver`` (its version), and ``gpus``."""
    print(json.dumps(_listed(root)))


@lru_cache(maxsize=None)  # the libraries may start the driver, which takes seconds
def _listed(root: str) -> dict[str, Any]:
    directory = os.path.join(root, "proc/driver/nvidia")
    version = re.search(r"\s(\d{3}\.[\d.]*\d)\s", _text(os.path.join(directory, "version")))
    said: dict[str, Any] = {"driver": version.group(1) if version else "", "gpus": []}
    with suppress(OSError):
        for bus in sorted(os.listdir(os.path.join(directory, "gpus"))):
            text = _text(os.path.join(directory, "gpus", bus, "information"))
            uuid, minor = re.search(r"GPU UUID:\s*(\S+)", text), re.search(r"Device Minor:\s*(\d+)", text)
            if minor is not None:
                each = {"bus": bus.lower(), "uuid": uuid and uuid.group(1), "minor": int(minor.group(1))}
                said["gpus"].append(each)
    by_files = said["gpus"] and all(each["uuid"] and "?" not in each["uuid"] for each in said["gpus"])
    by_libraries = False
    if not by_files and any(os.path.exists(os.path.join(root, "dev", name)) for name in ("nvidiactl", "dxg")):
        with suppress(OSError, subprocess.TimeoutExpired):
            answer, _status = cuda_driver.apart("list", cuda_driver.PATIENCE_S, os.environ)
            if answer and answer["gpus"]:
                said, by_libraries = dict(answer, driver=said["driver"] or answer["driver"]), True
    for each in said["gpus"]:  # what the libraries list they opened; WSL2 has no such files
        file = os.path.join(root, f"dev/nvidia{each['minor']}")
        each["opens"] = _can_open(file) or (by_libraries and not os.path.exists(file))
    return said


def visible(found: Sequence[Gpu], cuda_visible_devices: str | None) -> tuple[Gpu, ...]:
    """Those of ``found`` that CUDA shows to the program, in CUDA's order.

    CUDA stops at the first entry that it can't use; indexes count in PCI order (CUDA_DEVICE_ORDER=PCI_BUS_ID, and
    alike GPUs always). An entry for a part of a GPU (MIG) is not resolved; ``part_of_gpu`` takes it.
    """
    if cuda_visible_devices is None:
        return tuple(found)
    chosen: list[Gpu] = []
    for entry in cuda_visible_devices.split(","):
        word = entry.strip()
        if re.fullmatch(r"\d{1,4}", word):
            match = [found[int(word)]] if int(word) < len(found) else []
        else:
            match = [gpu for gpu in found if word and gpu.uuid.startswith(word)]
        if len(match) != 1:
            break
        chosen.append(match[0])
    return tuple(chosen)


def part_of_gpu(cuda_visible_devices: str | None) -> str | None:
    """UUID of the part of a GPU (MIG) that CUDA shows: the first entry, and no other, where that is one."""
    first = (cuda_visible_devices or "").split(",")[0].strip()
    return first if re.fullmatch(r"MIG-\S+", first) else None


def of_task(local_rank: int, shown: Sequence[Gpu]) -> Gpu | None:
    """The GPU that a program uses by convention: number ``local_rank``, or the only one that it sees."""
    if len(shown) == 1:
        return shown[0]
    return shown[local_rank] if local_rank < len(shown) else None


def device_of_task(local_rank: int, found: Sequence[Gpu], shown: Sequence[Gpu], env: Mapping[str, str]) -> Device:
    """What a task computes on by convention. A part of a GPU is a device of its own, though the driver's files list
    whole GPUs only: CUDA's variable names it, or that of the container runtime.
    """
    part = part_of_gpu(env.get("CUDA_VISIBLE_DEVICES", env.get("NVIDIA_VISIBLE_DEVICES"))) if found else None
    if part is not None:
        return Device("cuda", 0, part, 1, None)
    gpu = of_task(local_rank, shown)
    if gpu is None:
        return Device("cpu", None, None, len(shown), None)
    return Device("cuda", list(shown).index(gpu), gpu.uuid, len(shown), gpu)


def near_gpu(
    local_rank: int, local_size: int, shown: Sequence[Gpu], allowed: Cpus, root: str = "/", *, of_all: bool = False
) -> Binding:
    """The processors for a task: its share of those near its GPU, in whole cores, within ``allowed``.

    Tasks whose GPUs are near the same processors share them evenly; where a task sees only its own GPU the others
    are unknown, and the tasks keep the whole set.

    Args:
        of_all: the share of its GPU if each GPU that is shown had a task, whatever their order: the same processors
            for the same GPU in every launch of a study.
    """
    gpu = of_task(local_rank, shown)
    if gpu is None:
        return Binding(frozenset(), "no GPU is seen")
    near = gpu.near & allowed
    if not near:
        return Binding(frozenset(), f"no processor near GPU {gpu.bus} is allowed to this task")
    tasks = sorted(range(len(shown)), key=lambda rank: shown[rank].bus) if of_all else range(local_size)
    peers = [rank for rank in tasks if _near_of(rank, shown) == gpu.near] or [local_rank]
    if len(shown) == 1:
        return Binding(near, f"near GPU {gpu.bus}")
    cores = _cores(near, root)
    if len(cores) < len(peers):
        return Binding(near, f"near GPU {gpu.bus}, shared by {len(peers)} tasks")
    place, share = peers.index(local_rank), len(peers)
    mine = cores[len(cores) * place // share : len(cores) * (place + 1) // share]
    return Binding(frozenset().union(*mine), f"near GPU {gpu.bus}, share {place + 1} of {share}")


def apply(bound: Binding) -> Binding:
    """Bind this process, and so what it starts; where the kernel refuses, it stays as it is and ``why`` says so."""
    if not bound.cpus:
        return bound
    try:
        os.sched_setaffinity(0, bound.cpus)
    except OSError as error:
        return Binding(frozenset(), f"not bound ({bound.why}): the kernel refuses: {error.strerror}")
    return bound


def parse(text: str) -> Cpus:
    """The kernel's list format: ``0-3,8`` is {0, 1, 2, 3, 8}; empty for anything else."""
    cpus: set[int] = set()
    for part in text.strip().split(","):
        match = re.fullmatch(r"(\d+)(?:-(\d+))?", part.strip())
        if match is not None:
            cpus.update(range(int(match.group(1)), int(match.group(2) or match.group(1)) + 1))
    return frozenset(cpus)


def show(cpus: Cpus) -> str:
    """The inverse of ``parse``."""
    runs: list[list[int]] = []
    for cpu in sorted(cpus):
        if runs and cpu == runs[-1][1] + 1:
            runs[-1][1] = cpu
        else:
            runs.append([cpu, cpu])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)


def _near_of(local_rank: int, shown: Sequence[Gpu]) -> Cpus | None:
    gpu = of_task(local_rank, shown)
    return None if gpu is None else gpu.near


def _cores(cpus: Cpus, root: str) -> list[Cpus]:
    """Hardware threads grouped by core, in the order of their first thread."""
    cores = {}
    for cpu in sorted(cpus):
        path = os.path.join(root, f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
        threads = (parse(_text(path)) or frozenset((cpu,))) & cpus
        cores[min(threads)] = threads
    return [cores[first] for first in sorted(cores)]


def _text(path: str) -> str:
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            return file.read()
    except OSError:
        return ""


def _can_open(path: str) -> bool:
    # A device cgroup refuses at open; the mode bits alone don't tell.
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CLOEXEC))
    except OSError:
        return False
    return True
