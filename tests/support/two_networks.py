"""Two nodes for real: two network namespaces with two links between them, ``fast0`` and ``slow0``, as root.

A process of each namespace keeps it alive; nothing of this machine's own network is touched, and all goes with them.
"""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from runner.box import root as box_root
from runner.box.config import DEFAULT_SLURM
from tests.support.waiting import until

ADDRESS = {"fast0": "10.77.0.{}", "slow0": "10.78.0.{}"}
# In a mount namespace of its own: the image, the run directory at /results, and its node's network.
_ENTER = """
set -eu
mount -t squashfs -o loop,ro "$1" "$2"
mount --bind "$3" "$2/results"
mount -t proc proc "$2/proc"
mount --rbind /sys "$2/sys"
mount --rbind /dev "$2/dev"
mount -t tmpfs tmpfs "$2/tmp"
echo "$4 $(uname -n)" > "$2/tmp/hosts"   # Gloo looks its own name up, and connects to it
mount --bind "$2/tmp/hosts" "$2/etc/hosts"
root=$2
shift 4
exec chroot "$root" "$@"
"""


@dataclass(frozen=True)
class TwoNetworks:
    """``holders``: ids of the processes that keep the namespaces of node 0 and node 1."""

    holders: tuple[int, int]

    def argv(self, node: int, image: Path, root: Path, run: Path, address: str, command: list[str]) -> list[str]:
        """The argument list that runs ``command`` inside the image on a node. ``root``: an empty directory;
        ``address``: of this machine's name there.
        """
        inside = ["unshare", "--mount", "--propagation", "private", "sh", "-c", _ENTER, "sh"]
        enter = ["nsenter", f"--target={self.holders[node]}", "--net"]
        return [*enter, *inside, str(image), str(root), str(run), address, *command]


def box_program(name: str) -> list[str]:
    """A program of the box's root with that root's own libraries: this machine may lack it."""
    root = box_root.ensure(DEFAULT_SLURM, print).path
    loader = next((root / "usr/lib").glob("*-linux-gnu/ld-linux*"))
    return [str(loader), "--library-path", str(loader.parent), str(root / name)]


@contextmanager
def two_networks() -> Iterator[TwoNetworks]:
    ip = box_program("usr/bin/ip")
    holders = [subprocess.Popen(["unshare", "--net", "sleep", "600"]) for _ in range(2)]
    try:
        first, second = (holder.pid for holder in holders)
        for each in (first, second):
            until(partial(_is_apart, each), "a network of its own", every_s=0.05)
            _in(each, *ip, "link", "set", "lo", "up")
        for name, address in ADDRESS.items():
            _in(first, *ip, "link", "add", name, "type", "veth", "peer", "name", name, "netns", str(second))
            for node, each in enumerate((first, second)):
                _in(each, *ip, "address", "add", f"{address.format(node + 1)}/24", "dev", name)
                _in(each, *ip, "link", "set", name, "up")
        yield TwoNetworks((first, second))
    finally:
        for holder in holders:
            holder.kill()
            holder.wait()


def _is_apart(pid: int) -> bool:
    return Path(f"/proc/{pid}/ns/net").readlink() != Path("/proc/self/ns/net").readlink()


def _in(pid: int, *command: str) -> None:
    subprocess.run(["nsenter", f"--target={pid}", "--net", *command], check=True)
