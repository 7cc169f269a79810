"""A box and private engines leave the host as it was: while they run, and after."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import shutil
import signal
import socket
import stat
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from runner.images import engine
from tests.support.commands import ran
from tests.support.daemons import own_box
from tests.support.light_base import small_root

pytestmark = pytest.mark.integration


def test_box_and_private_engine_leave_the_host_as_it_was() -> None:
    state = Path(tempfile.mkdtemp(prefix="engine-"))
    before, daemons_before = observe(), running_daemons()
    try:
        with own_box("untouched") as here:
            engine.start_private(state)
            hosts = ran([here.bin_dir / "srun", "--nodes=2", "hostname"], timeout_s=60).out
            during, daemons_during = observe(), running_daemons()
    finally:
        engine.remove_private(state)
    after, daemons_after = observe(), running_daemons()

    assert sorted(hosts.split()) == ["dgx01", "dgx02"]
    for program in ("slurmctld", "dockerd"):
        assert any(program in line for line in daemons_during - daemons_before), "the test must see what it looks for"
    # An engine keeps its containers' cgroups where the kernel has them, below one name, while it runs.
    assert _differences(before, dataclasses.replace(during, cgroups=before.cgroups, run=before.run)) == {}
    # Private engines share that name, and the first to end takes it away where nothing runs below it.
    assert after.cgroups <= before.cgroups
    assert _differences(before, dataclasses.replace(after, cgroups=before.cgroups, run=before.run)) == {}
    assert daemons_after == daemons_before
    assert not state.exists()


def test_the_view_would_show_a_listener() -> None:
    before = observe()
    with socket.create_server(("127.0.0.1", 0)) as server:
        shown = observe().listeners - before.listeners
        assert [line.endswith(f":{server.getsockname()[1]:04X}") for line in shown] == [True]


def _differences(one: HostState, other: HostState) -> dict[str, object]:
    values = {name: (getattr(one, name), getattr(other, name)) for name in HostState.__dataclass_fields__}
    return {name: set(a) ^ set(b) for name, (a, b) in values.items() if a != b}


# Programs that a box or an engine starts and that live on by themselves.
DAEMONS = ("containerd", "dockerd", "munged", "runc", "slurm", "squashfuse", "unshare")


@dataclass(frozen=True)
class HostState:
    """One moment of the host.

    Attributes:
        listeners: protocol, local address and port (as in /proc/net) of what waits for strangers.
        packet_filter: rules of IPv4 and IPv6 without counters. forwarding: whether the kernel forwards packets.
    """

    mounts: frozenset[str]
    links: frozenset[str]
    listeners: frozenset[str]
    packet_filter: tuple[str, ...]
    forwarding: tuple[str, ...]
    devices: frozenset[str]
    cgroups: frozenset[str]
    run: frozenset[str]
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
        run=frozenset(path.name for path in Path("/run").iterdir()),
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


def test_a_private_engine_leaves_the_host_as_it_was() -> None:
    """Started by three at once, its path too long for a socket, and stopped: nothing but its own state is left."""
    parent = Path(tempfile.mkdtemp(prefix="engine-"))
    state = parent / ("long" * 30) / "engine"
    before = observe()
    try:
        with ThreadPoolExecutor() as pool:
            (url,) = set(pool.map(engine.start_private, [state] * 3))
        client = engine.connect(url)
        assert engine.needs_host_network(client)
        client.api.import_image_from_data(small_root(), repository="private", tag="1")
        assert observe().mounts == before.mounts
        client.close()
        assert engine.stop_private(state)
        assert not engine.stop_private(state)
        assert _differences(before, observe()) == {}
        engine.remove_private(state)
        assert not state.exists()
    finally:
        engine.remove_private(state)
        shutil.rmtree(parent)


@pytest.mark.parametrize("left_alive", [True, False], ids=["containerd goes on", "nothing goes on"])
def test_a_private_engine_that_was_killed_starts_again(tmp_path: Path, left_alive: bool) -> None:
    state = tmp_path / "engine"
    try:
        url = engine.start_private(state)
        run_dir = Path(url.removeprefix("unix://")).parent
        pids = [int((run_dir / "dockerd.pid").read_text())]
        pids += [] if left_alive else [int((run_dir / "x/containerd/containerd.pid").read_text())]
        for pid in pids:
            with suppress(ProcessLookupError):  # containerd may end by itself once the engine is gone
                os.kill(pid, signal.SIGKILL)
        assert engine.start_private(state) == url
        engine.connect(url).close()
    finally:
        engine.remove_private(state)
