"""Two nodes on this machine, each with a real sshd: a name, processes and memory of its own, one file system for both.

Keys, ports, names and what ssh trusts lie in a directory of the test's; nothing of this machine's is touched.
"""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import msgspec

from tests.support.packages import unpacked
from tests.support.waiting import until

# In namespaces of its own: sshd's user and run directory, the nodes' names, and memory that nodes do not share.
_NODE = """\
set -eu
hostname "$2"
mount --bind "$1/hosts" /etc/hosts
mount --bind "$1/passwd" /etc/passwd
mount -t tmpfs run /run
mount -t tmpfs -o mode=1777 shm /dev/shm
mkdir -p /run/sshd "/var/tmp/root.ch"
mount -t tmpfs ch "/var/tmp/root.ch"
exec "$3" -D -e -f "$1/$2.sshd"
"""

_PORTS = iter(random.sample(range(28500, 32500), 4000))


@dataclass
class Node:
    """One node; ``child`` holds its namespaces, and with it everything on the node ends."""

    name: str
    address: str
    port: int
    child: subprocess.Popen[bytes] | None = None

    def processes(self) -> dict[int, str]:
        """What runs on the node, by process number as seen from outside; its listening sshd left out."""
        running = {}
        for entry in Path("/proc").glob("[1-9]*"):
            with suppress(OSError):
                words = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
                if words and (entry / "ns/pid").readlink() == self._space and "[listener]" not in words:
                    running[int(entry.name)] = words
        return running

    @property
    def _space(self) -> Path:
        assert self.child is not None
        return Path(f"/proc/{self.child.pid}/ns/pid_for_children").readlink()

    def runs(self) -> bool:
        return self.child is not None and self.child.poll() is None

    def is_quiet(self) -> bool:
        return not self.processes()

    def cut(self) -> None:
        """Its power is cut: no process of it says a word."""
        assert self.child is not None
        for entry in Path(f"/proc/{self.child.pid}/task/{self.child.pid}/children").read_text().split():
            os.kill(int(entry), signal.SIGKILL)
        self.child.wait(20)


@dataclass
class Nodes:
    """``entering``: words before a command, which runs in their network then. ``apart``: they see no other processes;
    else they can use a box's clients, and what runs in a session of theirs outlives them.
    """

    directory: Path
    entering: tuple[str, ...] = ()
    apart: bool = True
    nodes: list[Node] = field(default_factory=list)

    @classmethod
    def create(cls, directory: Path, path: str, entering: tuple[str, ...] = (), apart: bool = True) -> Nodes:
        nodes = cls(directory, entering, apart)
        for name, holder in (("id", "a user"), ("stranger", "a stranger"), ("host_key", "the nodes")):
            words = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", holder, "-f", str(directory / name)]
            subprocess.run(words, check=True)
        (directory / "authorized_keys").write_bytes((directory / "id.pub").read_bytes())
        # Of this machine's users only the root of the nodes, whose shell reads no ~/.bashrc of this machine.
        users = f"root:x:0:0::{directory}/home:/bin/bash\nsshd:x:65533:65534::/run/sshd:/usr/sbin/nologin\n"
        (directory / "home").mkdir()
        (directory / "passwd").write_text(users)
        for number, name in enumerate(("nodea", "nodeb")):
            nodes.nodes.append(Node(name, f"127.0.0.{2 + number}", free_port()))
        names = "".join(f"{node.address} {node.name}\n" for node in nodes.nodes)
        (directory / "hosts").write_text(f"127.0.0.1 localhost\n{names}")
        key = (directory / "host_key.pub").read_text()
        (directory / "known_hosts").write_text("".join(f"[{node.address}]:{node.port} {key}" for node in nodes.nodes))
        for node in nodes.nodes:
            (directory / f"{node.name}.sshd").write_text(
                f"Port {node.port}\nListenAddress {node.address}\nHostKey {directory}/host_key\nPidFile none\n"
                f"AuthorizedKeysFile {directory}/authorized_keys\nStrictModes no\nPasswordAuthentication no\n"
                f"KbdInteractiveAuthentication no\nPermitRootLogin yes\nSetEnv PATH={path}\n"
            )
        nodes.configure()
        return nodes

    @property
    def config(self) -> Path:
        return self.directory / "ssh_config"

    def configure(self, name: str = "ssh_config", key: str = "id", known: str = "known_hosts") -> Path:
        of_each = "".join(f"Host {node.name}\n  HostName {node.address}\n  Port {node.port}\n" for node in self.nodes)
        path = self.directory / name
        path.write_text(
            f"{of_each}Host *\n  User root\n  IdentityFile {self.directory}/{key}\n  IdentitiesOnly yes\n"
            f"  UserKnownHostsFile {self.directory}/{known}\n  GlobalKnownHostsFile /dev/null\n"
        )
        return path

    def site(self, **changes: object) -> Path:
        """A site file of the nodes, each with room for two ranks on CPUs."""
        facts: dict[str, object] = {
            "name": "two",
            "extends": "hosts",
            "device": "cpu",
            "ssh": {"config": str(self.config), "hosts": {node.name: 2 for node in self.nodes}},
            **_bare_machine(),
            **changes,
        }
        path = self.directory / f"site-{abs(hash(json.dumps(facts, default=str)))}.yaml"
        path.write_bytes(msgspec.yaml.encode(facts))
        return path

    def _answers(self, node: Node) -> bool:
        words = ("timeout", "1", "bash", "-c", f"exec head -c 4 <>/dev/tcp/{node.address}/{node.port}")
        return subprocess.run([*self.entering, *words], capture_output=True, check=False).stdout == b"SSH-"

    def start(self) -> None:
        root = unpacked("openssh-server", "libwrap0")
        libraries = root / f"usr/lib/{os.uname().machine}-linux-gnu"
        for node in self.nodes:
            if node.runs():
                continue
            spaces = ["--mount", "--uts", "--ipc"]
            spaces += ["--pid", "--fork", "--kill-child", "--mount-proc"] if self.apart else []
            with (self.directory / f"{node.name}.log").open("ab") as log:
                node.child = subprocess.Popen(
                    [*self.entering, "unshare", *spaces, "--propagation", "private", "sh", "-c", _NODE, "sh",
                     self.directory, node.name, root / "usr/sbin/sshd"],
                    stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
                    env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LD_LIBRARY_PATH": str(libraries)},
                )  # fmt: skip
        for node in self.nodes:
            until(partial(self._answers, node), f"{node.name} answers", timeout_s=90)


def free_port() -> int:
    """None that the kernel gives a client, a box or a rendezvous takes, nor this process had before."""
    for port in _PORTS:
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise AssertionError("no port is free")


def _bare_machine() -> Mapping[str, object]:
    """What the shipped site of this machine says for one without GPUs."""
    local = msgspec.yaml.decode((Path(__file__).parents[2] / "runner/sites/files/local.yaml").read_bytes())
    bare: Mapping[str, object] = local["without_gpus"]
    return bare


@contextmanager
def running_nodes(directory: Path, path: str, entering: tuple[str, ...] = (), apart: bool = True) -> Iterator[Nodes]:
    nodes = Nodes.create(directory, path, entering, apart)
    try:
        nodes.start()
        yield nodes
    finally:
        for node in nodes.nodes:
            if node.runs() and node.child is not None:
                node.child.kill()
                node.child.wait(20)
