"""Ports of this machine itself, where every user may listen."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

from runner.core import ownership
from runner.core.errors import InfrastructureError, RefusedError

_Address = ipaddress.IPv4Address | ipaddress.IPv6Address


def host_of(netloc: str) -> str:
    """The host of ``HOST[:PORT]``, in lower case; empty where there is none."""
    return urlsplit(f"//{netloc}").hostname or ""


def is_loopback(netloc: str) -> bool:
    """Whether ``HOST[:PORT]`` is this machine itself, by its words."""
    try:
        return ipaddress.ip_address(host_of(netloc)).is_loopback
    except ValueError:
        return host_of(netloc) == "localhost"


def is_here(netloc: str) -> bool:
    """Whether ``HOST[:PORT]`` leads to this machine, whatever it is called."""
    return any(each.is_loopback or each.is_unspecified or _is_own(each) for each in _addresses(host_of(netloc)))


def ensure_own_port(netloc: str, *, by_name: bool = False) -> str:
    """The address of ``HOST[:PORT]`` at which a trusted user listens, as a host of URLs: as long as that user does, no
    other one can. ``by_name``: who connects takes any address of it, so that user must listen at all.

    Raises:
        RefusedError: others listen at this port of this machine, too. InfrastructureError: nothing listens there.
    """
    port = urlsplit(f"//{netloc}").port or 80
    listening = list(_listening(port))
    if not all(ownership.is_trusted(user) for _, user in listening):
        what = f"no trusted user listens at {netloc}: its images could be anybody's, and a login would be"
        fix = "let your registry or tunnel listen there, or at another port; RUNNER_TRUST=NAME if it is NAME's"
        raise RefusedError(what, where=netloc, fix=fix)
    reached = []
    for address in (every := _addresses(host_of(netloc))):
        at = ipaddress.ip_address("127.0.0.1" if address.version == 4 else "::1") if address.is_unspecified else address
        if any(each == at or (each.is_unspecified and at.version in (4, each.version)) for each, _ in listening):
            reached.append(f"[{at}]" if at.version == 6 else str(at))
    if reached and by_name and len(reached) < len(every):
        what = f"{host_of(netloc)} has other addresses here, at which anybody may listen"
        raise RefusedError(what, where=netloc, fix=f"write it as {reached[0]}:{port}")
    if reached:
        return reached[0]
    # By the time that it is called, anybody may listen.
    fix = f"start your registry, tunnel or engine at {netloc}, or name another port"
    raise InfrastructureError(f"{netloc} cannot be reached: nothing listens there", where=netloc, fix=fix)


def _listening(port: int) -> Iterator[tuple[_Address, int]]:
    """Addresses of this machine at which users listen at a port (proc(5))."""
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with suppress(OSError):
            for row in map(str.split, Path(table).read_text("ascii").splitlines()[1:]):
                address, _, of_port = row[1].rpartition(":")
                if row[3] == "0A" and int(of_port, 16) == port:
                    words = (bytes.fromhex(address[at : at + 8])[::-1] for at in range(0, len(address), 8))
                    yield _plain(ipaddress.ip_address(b"".join(words))), int(row[7])


def _addresses(host: str) -> list[_Address]:
    """As connecting tries them; none where it has no address."""
    with suppress(OSError, ValueError):  # as UnicodeError is
        every = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
        return list(dict.fromkeys(_plain(ipaddress.ip_address(str(each[4][0]).partition("%")[0])) for each in every))
    return []


def _plain(address: _Address) -> _Address:
    """The address of version 4 that one of version 6 stands for."""
    return getattr(address, "ipv4_mapped", None) or address


def _is_own(address: _Address) -> bool:
    """Whether this machine has it."""
    with suppress(OSError), socket.socket(socket.AF_INET6 if address.version == 6 else socket.AF_INET) as probe:
        probe.bind((str(address), 0))
        return True
    return False
