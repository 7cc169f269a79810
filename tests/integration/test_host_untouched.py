"""A box and a private engine leave the host as it was: while they run, and after."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import shutil
import stat
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from runner import box
from runner.images import engine

pytestmark = pytest.mark.integration


def test_box_and_private_engine_leave_the_host_as_it_was() -> None:
    state = Path(tempfile.mkdtemp(prefix="engine-"))
    name = f"untouched-{os.getpid()}"
    before, daemons_before = observe(), running_daemons()
    try:
        here = box.up(box.BoxSpec(name=name))
        engine.start_private(state)
        ran = subprocess.run(
            [here.bin_dir / "srun", "--nodes=2", "hostname"], capture_output=True, text=True, timeout=60, check=False
        )
        during, daemons_during = observe(), running_daemons()
    finally:
        box.down(name)
        engine.remove_private(state)
    after, daemons_after = observe(), running_daemons()

    assert sorted(ran.stdout.split()) == ["dgx01", "dgx02"], ran.stderr
    assert any("slurmctld" in line for line in daemons_during - daemons_before), "the test must see what it looks for"
    assert any("dockerd" in line for line in daemons_during - daemons_before)
    # An engine keeps its containers' cgroups where the kernel has them, below one name, while it runs.
    assert _differences(before, dataclasses.replace(during, cgroups=before.cgroups)) == {}
    # Private engines share that name, and the first to end takes it away where nothing runs below it.
    assert after.cgroups <= before.cgroups
    assert _differences(before, dataclasses.replace(after, cgroups=before.cgroups)) == {}
    assert daemons_after == daemons_before
    assert not state.exists()


def test_the_view_would_show_a_listener() -> None:
    import socket

    before = observe()
    with socket.create_server(("127.0.0.1", 0)) as server:
        shown = observe().listeners - before.listeners
        assert [line.endswith(f":{server.getsockname()[1]:04X}") for line in shown] == [True]


def _differences(one: HostState, other: HostState) -> dict[str, object]:
    return {
        field.name: (getattr(one, field.name), getattr(other, field.name))
        if isinstance(getattr(one, field.name), tuple)
        else getattr(one, field.name) ^ getattr(other, field.name)
        for field in dataclasses.fields(one)
        if getattr(one, field.name) != getattr(other, field.name)
    }


# Programs that a box or an engine starts and that live on by themselves.
DAEMONS = ("containerd", "dockerd", "munged", "runc", "slurm", "squashfuse", "unshare")


@dataclass(frozen=True)
class HostState:
    """One moment of the host.

    Attributes:
        listeners: protocol, local address and port (as in /proc/net) of what waits for strangers.
        packet_filter: rules of IPv4 and IPv6 without counters; empty where there is no iptables-save.
        forwarding: whether the kernel forwards packets, IPv4 and IPv6.
    """

    mounts: frozenset[str]
    links: frozenset[str]
    listeners: frozenset[str]
    packet_filter: tuple[str, ...]
    forwarding: tuple[str, ...]
    devices: frozenset[str]
    cgroups: frozenset[str]
    etc: frozenset[tuple[str, str]]


def observe() -> HostState:
    return HostState(
        mounts=frozenset(line.split(" - ")[0].split()[4] for line in _lines("/proc/self/mountinfo")),
        links=frozenset(path.name for path in Path("/sys/class/net").iterdir()),
        listeners=frozenset(_listeners()),
        packet_filter=tuple(_packet_filter()),
        forwarding=tuple(
            "".join(_lines(f"/proc/sys/net/{name}")) for name in ("ipv4/ip_forward", "ipv6/conf/all/forwarding")
        ),
        devices=frozenset(path.name for path in Path("/dev").iterdir()),
        cgroups=frozenset(
            folder for folder, _, _ in os.walk("/sys/fs/cgroup") if any(n in folder for n in ("docker", "gpu-runner"))
        ),
        etc=frozenset(_etc()),
    )


def running_daemons() -> Counter[str]:
    """Command lines of the processes whose programs a box or an engine starts."""
    found: Counter[str] = Counter()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            name = (folder / "comm").read_text().strip()
            words = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            if name.startswith(DAEMONS) and words:  # none: a zombie
                found[words] += 1
        except OSError:
            continue  # it has ended meanwhile
    return found


def _listeners() -> Iterator[str]:
    # proc(5): field 2 is the local address, field 4 the state: 0A listens, 07 is a UDP socket open to anybody
    for protocol, state in (("tcp", "0A"), ("tcp6", "0A"), ("udp", "07"), ("udp6", "07")):
        for line in _lines(f"/proc/net/{protocol}")[1:]:
            fields = line.split()
            if fields[3] == state:
                yield f"{protocol} {fields[1]}"


def _packet_filter() -> Iterator[str]:
    for program in ("iptables-save", "ip6tables-save"):
        found = shutil.which(program, path="/usr/sbin:/sbin:/usr/bin")
        if found:
            rules = subprocess.run([found], capture_output=True, text=True, check=False, timeout=30).stdout
            yield from (line.split(" [")[0] for line in rules.splitlines() if not line.startswith("#"))


def _etc() -> Iterator[tuple[str, str]]:
    for folder, folders, files in os.walk("/etc"):
        for path in (Path(folder, name) for name in (*folders, *files)):
            about = path.lstat()
            content = ""
            if stat.S_ISLNK(about.st_mode):
                content = str(path.readlink())
            elif stat.S_ISREG(about.st_mode) and os.access(path, os.R_OK):
                content = hashlib.sha256(path.read_bytes()).hexdigest()
            yield str(path), f"{about.st_mode:o} {about.st_uid}:{about.st_gid} {content}"


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text().splitlines()
    except FileNotFoundError:
        return []
