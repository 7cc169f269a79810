"""Addresses, interfaces and ports of this host, by the standard library alone (Linux)."""

from __future__ import annotations

import fcntl
import socket
import struct

_SIOCGIFADDR = 0x8915  # linux/sockios.h: an interface's IPv4 address
_LOOPBACK = "127."  # Debian's installer maps the host's own name there, and cloud-init: no other node can reach it
FIRST_PORT, PORTS = 12000, 16000  # below Linux's ephemeral range (32768), above the well-known services
CANDIDATES = 8


def resolve(host: str) -> str:
    """The IPv4 address of a host as seen from here (Horovod's client knows no other family): of one whose name is a
    loopback address, that of this machine on its way to other networks, where it has one.

    Raises:
        OSError: the name does not resolve to an IPv4 address.
    """
    found = [info[4][0] for info in socket.getaddrinfo(host, None, socket.AF_INET, socket.SOCK_STREAM)]
    addresses = [str(address) for address in found]
    reachable = [address for address in addresses if address == host or not is_loopback(address)]
    if reachable:
        return reachable[0]
    # Our own name: the address by which this host would reach another network (nothing is sent).
    return source_address("192.0.2.1") or addresses[0]


def is_loopback(address: str) -> bool:
    """Whether only this machine reaches an IPv4 address."""
    return address.startswith(_LOOPBACK)


def source_address(peer: str) -> str | None:
    """Our address on the route to ``peer``; None when there is no route."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        try:
            sock.connect((peer, 9))
        except OSError:
            return None
        return str(sock.getsockname()[0])


def interface_of(address: str) -> str | None:
    """The interface that carries this address of ours; None when none does."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        for _index, name in socket.if_nameindex():
            asked = struct.pack("256s", name.encode()[:15])
            try:
                answer = fcntl.ioctl(sock.fileno(), _SIOCGIFADDR, asked)
            except OSError:
                continue
            if socket.inet_ntoa(answer[20:24]) == address:
                return name
            if name == "lo" and is_loopback(address):
                return name
    return None


def candidates(port: int, secret: str) -> list[int]:
    """The ports to try, in an order that every rank of the job step computes alike: the job's own, then some that no
    other user can know and take before.

    Their distance, by the ranks' secret (hex digits), is prime to 16000, so that they differ.
    """
    if not FIRST_PORT <= port < FIRST_PORT + PORTS:
        return [port]
    distance = int(secret, 16) % (PORTS // 10) * 10 + 9
    return [FIRST_PORT + (port - FIRST_PORT + distance * step) % PORTS for step in range(CANDIDATES)]


def free_port(address: str, ports: list[int]) -> int:
    """The first of ``ports`` that is free at ``address``; 0 when all are taken.

    The port 0 among them stands for one that the kernel chooses.
    """
    for port in ports:
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                sock.bind((address, port))
            except OSError:
                continue
            return int(sock.getsockname()[1])
    return 0


def knows_itself() -> bool:
    """Whether this machine's own host name resolves: Gloo needs it for Horovod's process sets (0.28.1)."""
    try:
        socket.getaddrinfo(socket.gethostname(), None)
    except OSError:
        return False
    return True
