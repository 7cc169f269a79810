"""Ports of this machine itself, where every user may listen."""

from __future__ import annotations

import ipaddress
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

from runner.core import files
from runner.core.errors import InfrastructureError, RefusedError


def host_of(netloc: str) -> str:
    """The host of ``HOST[:PORT]``, in lower case; empty where there is none."""
    return urlsplit(f"//{netloc}").hostname or ""


def is_loopback(netloc: str) -> bool:
    """Whether ``HOST[:PORT]`` is this machine itself."""
    try:
        return ipaddress.ip_address(host_of(netloc)).is_loopback
    except ValueError:
        return host_of(netloc) == "localhost"


def ensure_own_port(netloc: str) -> None:
    """Raises RefusedError: this port of this machine, where all users may listen, is no trusted user's;
    InfrastructureError: nothing listens there.
    """
    port, owners = urlsplit(f"//{netloc}").port or 80, set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):  # proc(5); 0A listens
        with suppress(OSError):
            rows = [line.split() for line in Path(table).read_text("ascii").splitlines()[1:]]
            listening = (row for row in rows if row[3] == "0A" and int(row[1].rpartition(":")[2], 16) == port)
            owners |= {int(row[7]) for row in listening}
    if not owners:  # by the time that it is called, anybody may listen
        fix = f"start your registry, tunnel or engine at {netloc}, or name another port"
        raise InfrastructureError(f"{netloc} cannot be reached: nothing listens there", where=netloc, fix=fix)
    if not all(map(files.is_trusted, owners)):
        what = f"no trusted user listens at {netloc}: its images could be anybody's, and a login would be"
        fix = "let your registry or tunnel listen there, or at another port; RUNNER_TRUST=NAME if it is NAME's"
        raise RefusedError(what, where=netloc, fix=fix)
