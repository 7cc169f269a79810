"""Two nodes' topologies, written out as the kernel's and the driver's files below a directory of a test.

DGX A100: NVIDIA's user guide and ``nvidia-smi topo -m`` (GPUs 0 and 1 near NUMA node 3, 2 and 3 near 1, 4 and 5 near 7,
6 and 7 near 5; two compute ports a pair; one dual-port adapter for storage). Polaris: ALCF's user guide (one EPYC 7543P
in four NUMA nodes, GPUs in reversed order; Slingshot, so no InfiniBand).
"""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Adapter:
    """A host channel adapter of one port."""

    name: str
    near: str
    link: str = "InfiniBand"
    state: str = "4: ACTIVE"
    rate: str = "200 Gb/sec (4X HDR)"


@dataclass(frozen=True)
class Node:
    """GPUs as (PCI address, near processors), adapters, and physical cores (thread 2 of core c is c + cores)."""

    cores: int
    gpus: tuple[tuple[str, str], ...]
    adapters: tuple[Adapter, ...] = ()

    def write(self, root: Path) -> str:
        """The files below ``root``; returns it as the launcher's modules take it."""
        for index, (bus, near) in enumerate(self.gpus):
            told = f"GPU UUID: \t GPU-{bus}\nDevice Minor: \t {index}"
            _file(root / "proc/driver/nvidia/gpus" / bus / "information", told)
            _file(root / "sys/bus/pci/devices" / bus / "local_cpulist", near)
            _file(root / f"dev/nvidia{index}", "")
        for adapter in self.adapters:
            device = root / "sys/class/infiniband" / adapter.name
            _file(device / "device/local_cpulist", adapter.near)
            for name, text in (("link_layer", adapter.link), ("state", adapter.state), ("rate", adapter.rate)):
                _file(device / "ports/1" / name, text)
        for cpu in range(2 * self.cores):
            core = cpu % self.cores
            siblings = root / f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"
            _file(siblings, f"{core},{core + self.cores}")
        return str(root)


def _file(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{text}\n")


def _numa(node: int, size: int, cores: int) -> str:
    first = node * size
    return f"{first}-{first + size - 1},{cores + first}-{cores + first + size - 1}"


_A100_NUMA = (3, 3, 1, 1, 7, 7, 5, 5)
_A100_BUSES = ("07", "0f", "47", "4e", "87", "90", "b7", "bd")
_A100_COMPUTE = ((0, 3), (1, 3), (2, 1), (3, 1), (6, 7), (7, 7), (8, 5), (9, 5))
DGX_A100 = Node(
    cores=128,
    gpus=tuple((f"0000:{bus}:00.0", _numa(numa, 16, 128)) for bus, numa in zip(_A100_BUSES, _A100_NUMA, strict=True)),
    adapters=(
        *(Adapter(f"mlx5_{number}", _numa(numa, 16, 128)) for number, numa in _A100_COMPUTE),
        Adapter("mlx5_4", _numa(5, 16, 128), link="Ethernet", rate="100 Gb/sec (4X EDR)"),
        Adapter("mlx5_5", _numa(5, 16, 128), link="Ethernet", state="1: DOWN"),
    ),
)
_POLARIS_BUSES = ("07", "46", "85", "c7")
POLARIS = Node(
    cores=32, gpus=tuple((f"0000:{bus}:00.0", _numa(3 - place, 8, 32)) for place, bus in enumerate(_POLARIS_BUSES))
)
