"""Slurm's daemons in a box of the tests, ended and started by their process ids inside it."""

import os
import re
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runner import box
from runner.box import Box
from tests.support.commands import ran

CONTROLLER = "slurmctld"
_TIMEOUT_S = 60


@contextmanager
def own_box(name: str, **spec: Any) -> Iterator[Box]:
    called = f"{name}-{os.getpid()}"
    try:
        yield box.up(box.BoxSpec(name=called, **spec))
    finally:
        box.down(called)


@contextmanager
def held_allocation(clients: Path, *options: str) -> Iterator[str]:
    """The number of an allocation, held as ``salloc`` does."""
    said = ran([clients / "salloc", "--no-shell", *options], timeout_s=300).err
    job = said.split("job allocation ")[1].split()[0]
    try:
        yield job
    finally:
        subprocess.run([clients / "scancel", job], check=True, timeout=60)


@dataclass(frozen=True)
class Daemons:
    """The daemons of one box. A node's is called by the node's name."""

    box: Box

    def inside(self, *argv: str) -> str:
        """What a program says that runs in the box as its user; it must end well."""
        return ran([self.box.bin_dir / "in-box", *argv], timeout_s=_TIMEOUT_S, cwd="/").out

    def process(self, name: str) -> str:
        file = "slurmctld" if name == CONTROLLER else f"slurmd.{name}"
        return self.inside("cat", f"/var/box/{file}.pid").strip()

    def signal(self, name: str, number: str) -> None:
        self.inside("kill", f"-{number}", self.process(name))

    def end(self, name: str) -> None:
        """End a daemon, and wait until it is gone: a node's outright, the controller so that it saves what it knows.

        Killed outright, slurmctld forgets its last 5 seconds: it starts a running job once more, and drains the node.
        """
        self.inside("sh", "-c", _ENDED, "sh", self.process(name), "TERM" if name == CONTROLLER else "KILL")

    def cut_power(self, node: str) -> None:
        """Kill all that runs on a node: it has a UTS namespace of its own."""
        self.inside("sh", "-c", _POWER_CUT, "sh", self.process(node))

    def start(self) -> None:
        self.inside("sh", "/etc/box/as.sh", "slurmctld")

    def begin(self, node: str) -> None:
        """Start a node that nothing is left of, as the box itself does."""
        self.inside("sh", "-c", _BEGUN, "sh", node)
        self.await_up(node)

    def restart(self, name: str) -> None:
        """End a daemon and start it anew; a node's in the namespaces that the node's tasks live in."""
        if name == CONTROLLER:
            self.end(name)
            self.start()
        else:
            anew = f"{_ENDED}; exec sh /etc/box/as.sh slurmd -N {name}"
            self.on_node(name, "sh", "-c", anew, "sh", self.process(name), "KILL")

    def configure(self, **settings: str) -> None:
        conf = self.inside("cat", "/etc/slurm/slurm.conf")
        for key, value in settings.items():
            conf = re.sub(rf"(?m)^{key}=.*\n", "", conf) + f"{key}={value}\n"
        self.inside("sh", "-c", 'printf %s "$1" >/etc/slurm/slurm.conf', "sh", conf)
        for name in (CONTROLLER, *self.box.spec.node_names):
            self.restart(name)

    def await_up(self, node: str) -> None:
        """Wait until a node takes jobs again; the controller is informed, and may know already."""
        deadline = time.monotonic() + _TIMEOUT_S
        while True:
            said = self.inside("sinfo", "--noheader", f"--nodes={node}", "--format=%T").strip()
            if said in ("idle", "mixed"):
                return
            assert time.monotonic() < deadline, said
            self.inside("sh", "-c", 'scontrol update NodeName="$1" State=RESUME || true', "sh", node)
            time.sleep(0.2)

    def on_node(self, node: str, *argv: str) -> str:
        """The same for a program that sees what a node sees."""
        return self.inside("nsenter", "--target", self.process(node), "--mount", "--uts", *argv)

    def next_job(self) -> int:
        match = re.search(r"(?m)^NEXT_JOB_ID\s*= (\d+)", self.inside("scontrol", "show", "config"))
        assert match is not None
        return int(match[1])

    def jobs_of(self, directory: str) -> list[str]:
        """Ids of all jobs that were submitted from that directory, ended ones as well."""
        said = self.inside("squeue", "--noheader", "--states=all", "--format=%i|%Z")
        return [line.split("|")[0].strip() for line in said.splitlines() if line.strip().endswith(f"|{directory}")]


_POWER_CUT = """
node=$(readlink "/proc/$1/ns/uts")
while :; do
    left=
    for process in /proc/[0-9]*; do
        [ "$(readlink "$process/ns/uts" 2>/dev/null)" = "$node" ] || continue
        left=yes   # until it has gone, its ports are not free
        kill -KILL "${process#/proc/}" 2>/dev/null
    done
    [ "$left" ] || break
    sleep 0.1
done
"""
_BEGUN = """
rm -f "/var/box/slurmd.$1.pid"   # which the new one writes
setsid unshare --mount --uts --propagation private sh /etc/box/node.sh "$1" </dev/null >>/var/log/slurm/again.log 2>&1 &
while [ ! -s "/var/box/slurmd.$1.pid" ]; do sleep 0.1; done
"""
_ENDED = 'kill -"$2" "$1"; while kill -0 "$1" 2>/dev/null; do sleep 0.02; done'
