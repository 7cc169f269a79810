"""Which process is meant, and whether it still lives: the one reader of the process table and the boot id.

A mark ``HOST.BOOT.NAMESPACE.PID.START`` names a process for ever: a number that was given out again has another
start time, and numbers mean something only within one boot's PID namespace (a container's 7 is not the host's).
"""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Literal

State = Literal["alive", "dead", "elsewhere"]

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")  # random(4)
_PATTERN = re.compile(r"(?P<table>(?P<host>[^.]*)\.[0-9a-f]*\.[0-9]*)\.(?P<pid>[0-9]+)\.(?P<start>[0-9]+)")


@dataclass(frozen=True)
class Entry:
    """An entry of the process table, as proc(5) has it in /proc/PID/stat.

    Attributes:
        start: when the process started, clock ticks since boot. session: the process id of its session's leader.
        parent: that of its parent, which changes while it runs. running: whether it is neither a zombie nor dead.
    """

    pid: int
    start: int
    session: int
    parent: int = field(compare=False)
    running: bool


def entry(pid: int) -> Entry | None:
    """The process table's entry of that number; None where there is none, or none that we may see."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return None
    return Entry(pid, int(fields[19]), int(fields[3]), int(fields[1]), fields[0] not in (b"Z", b"X"))


def is_running(pid: int, start: int) -> bool:
    """Whether the process with that number and start time still runs."""
    return _start(pid) == start


def session(leader: int) -> Iterator[Entry]:
    """The running processes of a session; the kernel gives its number to no other process meanwhile."""
    return (each for each in _every() if each.running and each.session == leader)


def children() -> Iterator[Entry]:
    """Those of this process, also zombies."""
    return (each for each in _every() if each.parent == os.getpid())


def _every() -> Iterator[Entry]:
    numbers = (int(path.name) for path in Path("/proc").iterdir() if path.name.isdecimal())
    return filter(None, map(entry, numbers))


def send(process: Entry, number: int) -> None:
    """Send a signal to this very process; nothing happens where it has ended, and its number may be another's. Raises
    PermissionError: it is another user's.
    """
    handle: int | None = None
    with suppress(OSError):  # Linux before 5.3 has none, and a container may forbid them
        handle = os.pidfd_open(process.pid)
    try:
        # Checked after opening: the handle stays with one process even if its number is given out again.
        if not is_running(process.pid, process.start):
            return
        with suppress(ProcessLookupError):
            if handle is None:
                os.kill(process.pid, number)
            else:
                signal.pidfd_send_signal(handle, number)
    finally:
        if handle is not None:
            os.close(handle)


def boot_id() -> str:
    """The id of this boot of this machine, hex digits and ``-``. Raises OSError: the kernel does not say."""
    return _BOOT_ID.read_text("ascii").strip()


def mark() -> str:
    """This process's mark: letters, digits, ``-`` and dots, good in a file's name and a container's label."""
    pid = os.getpid()
    return f"{_table()}.{pid}.{_start(pid) or 0}"


def unique() -> str:
    """Another text at each call, which begins with this process's mark."""
    return f"{mark()}.{os.urandom(4).hex()}"


def state(marked: str) -> State:
    """What became of the process whose mark ``marked`` begins with; ``elsewhere`` where this machine cannot tell."""
    match = _PATTERN.match(marked)
    if match is None or match["table"] != _table():
        return "elsewhere"
    pid = int(match["pid"])
    start = _start(pid)
    if start is None:
        with suppress(ProcessLookupError, OverflowError):
            try:
                os.kill(pid, 0)
            except PermissionError:  # it runs and is not shown to us: /proc is mounted with hidepid (proc(5))
                return "elsewhere"
    return "alive" if start == int(match["start"]) else "dead"


def described(marked: str) -> str:
    """``process 4711 on login1``, for people."""
    match = _PATTERN.match(marked)
    return f"process {match['pid']} on {match['host']}" if match else "an unknown process"


@lru_cache(maxsize=1)
def _table() -> str:
    """The process table that our numbers belong to: host, boot and PID namespace."""
    host = re.sub(r"[^A-Za-z0-9-]", "-", os.uname().nodename)[:64]
    boot = namespace = ""
    with suppress(OSError):
        boot = boot_id().replace("-", "")[:12]
    with suppress(OSError):
        namespace = re.sub(r"\D", "", str(Path("/proc/self/ns/pid").readlink()))
    return f"{host}.{boot}.{namespace}"


def _start(pid: int) -> int | None:
    """When a process started; None where it is gone or a zombie."""
    process = entry(pid)
    return process.start if process is not None and process.running else None
