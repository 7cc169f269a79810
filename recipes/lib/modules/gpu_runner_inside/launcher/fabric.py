"""The InfiniBand and RoCE ports of this node, from sysfs alone. ``root`` is ``/`` but in tests.

Sources: the kernel's ``/sys/class/infiniband/NAME/ports/N/{link_layer,state,rate}`` and the ``local_cpulist`` of the
port's PCI device.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

from gpu_runner_inside.launcher.binding import Cpus, Gpu, parse


@dataclass(frozen=True)
class Port:
    """A port of a host channel adapter.

    Attributes:
        name: as NCCL names it: ``mlx5_0:1``.
        link: ``InfiniBand`` or ``Ethernet``.
        active: it can carry data.
        gbit_s: signalling rate, Gbit/s; 0 where the kernel does not say.
        near: the processors near the adapter.
    """

    name: str
    link: str
    active: bool
    gbit_s: float
    near: Cpus

    @property
    def text(self) -> str:
        """For records: ``mlx5_0:1 InfiniBand 200``."""
        return f"{self.name} {self.link} {self.gbit_s:g}"


def ports(root: str = "/") -> tuple[Port, ...]:
    """Every port that this task can see, in the order of the adapters' numbers; empty without any."""
    directory = os.path.join(root, "sys/class/infiniband")
    found = []
    for adapter in sorted(_listed(directory), key=_number):
        near = parse(_text(os.path.join(directory, adapter, "device/local_cpulist")))
        for number in sorted(_listed(os.path.join(directory, adapter, "ports"))):
            place = os.path.join(directory, adapter, "ports", number)
            rate = re.match(r"[0-9.]+", _text(os.path.join(place, "rate")))
            found.append(
                Port(
                    f"{adapter}:{number}",
                    _text(os.path.join(place, "link_layer")),
                    "ACTIVE" in _text(os.path.join(place, "state")),
                    float(rate.group(0)) if rate else 0.0,
                    near,
                )
            )
    return tuple(found)


def near_gpu(gpu: Gpu, seen: tuple[Port, ...]) -> tuple[Port, ...]:
    """The active ports that share the GPU's processors: its own way out of the node."""
    return tuple(port for port in seen if port.active and port.near and port.near == gpu.near)


def compute(seen: tuple[Port, ...]) -> tuple[Port, ...]:
    """The ports that carry what ranks exchange: of the active ones those of InfiniBand where there are any, and of
    these the fastest. A node's adapters for storage and login are slower, or speak Ethernet (DGX A100: ``mlx5_4``).
    """
    active = [port for port in seen if port.active]
    fabric = [port for port in active if port.link == "InfiniBand"] or active
    best = max((port.gbit_s for port in fabric), default=0.0)
    return tuple(port for port in fabric if port.gbit_s == best)


def nccl_adapters(seen: tuple[Port, ...]) -> str:
    """The value of NCCL_IB_HCA that keeps NCCL to the compute ports; empty where it would take no others. NCCL itself
    chooses among them for each GPU (``=``: these names exactly; NCCL's user guide).
    """
    chosen = compute(seen)
    if not chosen or len(chosen) == sum(port.active for port in seen):
        return ""
    return "=" + ",".join(port.name for port in chosen)


def _listed(directory: str) -> list[str]:
    try:
        return os.listdir(directory)
    except OSError:
        return []


def _number(adapter: str) -> tuple[str, int]:
    match = re.search(r"\d+\Z", adapter)
    return (adapter[: match.start()], int(match.group(0))) if match else (adapter, 0)


def _text(path: str) -> str:
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            return file.read().strip()
    except OSError:
        return ""
