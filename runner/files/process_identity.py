"""Whose a file, a lock or a container is, and whether that process still lives.

A mark ``HOST.BOOT.NAMESPACE.PID.START`` names a process for ever: a number that was given out again has another
start time, and numbers mean something only within one boot's PID namespace (a container's 7 is not the host's).
"""

from __future__ import annotations

import os
import re
import secrets
import socket
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Literal

State = Literal["alive", "dead", "elsewhere"]

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")  # random(4)
_PATTERN = re.compile(r"(?P<table>(?P<host>[^.]*)\.[0-9a-f]*\.[0-9]*)\.(?P<pid>[0-9]+)\.(?P<start>[0-9]+)")


def mark() -> str:
    """This process's mark: letters, digits, ``-`` and dots, good in a file's name and a container's label."""
    pid = os.getpid()
    return f"{_table()}.{pid}.{_start(pid) or 0}"


def unique() -> str:
    """Another text at each call, which begins with this process's mark."""
    return f"{mark()}.{secrets.token_hex(4)}"


def state(marked: str) -> State:
    """What became of the process whose mark ``marked`` begins with; ``elsewhere`` where this machine cannot say."""
    found = _PATTERN.match(marked)
    if found is None or found["table"] != _table():
        return "elsewhere"
    pid = int(found["pid"])
    start = _start(pid)
    if start is None and _hidden(pid):
        return "elsewhere"
    return "alive" if start == int(found["start"]) else "dead"


def described(marked: str) -> str:
    """``process 4711 on login1``, for people."""
    found = _PATTERN.match(marked)
    return f"process {found['pid']} on {found['host']}" if found else "an unknown process"


@lru_cache(maxsize=1)
def _table() -> str:
    """The process table that our numbers belong to: host, boot and PID namespace."""
    host = re.sub(r"[^A-Za-z0-9-]", "-", socket.gethostname())[:64]
    boot = namespace = ""
    with suppress(OSError):
        boot = _BOOT_ID.read_text("ascii").strip().replace("-", "")[:12]
    with suppress(OSError):
        namespace = re.sub(r"\D", "", str(Path("/proc/self/ns/pid").readlink()))
    return f"{host}.{boot}.{namespace}"


def _hidden(pid: int) -> bool:
    """Whether it runs and is not shown to us: other users' where /proc is mounted with hidepid (proc(5))."""
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except (ProcessLookupError, OverflowError):
        pass
    return False


def _start(pid: int) -> int | None:
    """When a process started, clock ticks since boot (field 22 of proc(5)); None where it is gone or a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return None
    return None if fields[0] in (b"Z", b"X") else int(fields[19])
