"""A road that loses and delays packets, between this network namespace and itself, for ``tc netem`` where a kernel
lacks it: real TCP on both sides, over a TUN device whose other end is this process.

A packet for THERE is handed back with its two addresses swapped, so a server that listens on HERE is reached at THERE
from HERE; swapping leaves every checksum as it was. Needs a network namespace of its own (``unshare --net``), and in
it the right to configure it; leaves nothing behind, as the device goes with the namespace.
"""

from __future__ import annotations

import fcntl
import heapq
import os
import random
import select
import socket
import struct
import time

HERE, THERE = "10.9.0.1", "10.9.0.2"
_NAME = b"road0"
# linux/if_tun.h, linux/if.h, linux/sockios.h
_TUNSETIFF, _IFF_TUN, _IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
_SIOCSIFFLAGS, _SIOCSIFADDR, _SIOCSIFNETMASK = 0x8914, 0x8916, 0x891C
_IFF_UP, _IFF_RUNNING = 0x1, 0x40


def open_road(loss: float, delay_s: float, seed: int = 1) -> int:
    """Lay the road and serve it in a child process, which ends with its parent; returns its process id.

    Args:
        loss: of packets, in each direction, 0 to 1. delay_s: of each packet, seconds.

    Raises:
        OSError: no /dev/net/tun, or not allowed to configure this namespace's network.
    """
    device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(device, _TUNSETIFF, struct.pack("16sH22x", _NAME, _IFF_TUN | _IFF_NO_PI))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        for request, address in ((_SIOCSIFADDR, HERE), (_SIOCSIFNETMASK, "255.255.255.0")):
            place = struct.pack("HH4s8x", socket.AF_INET, 0, socket.inet_aton(address))
            fcntl.ioctl(sock, request, struct.pack("16s16s8x", _NAME, place))
        for name in (_NAME, b"lo"):  # a namespace begins with its loopback down
            fcntl.ioctl(sock, _SIOCSIFFLAGS, struct.pack("16sH22x", name, _IFF_UP | _IFF_RUNNING))
    parent = os.getpid()
    child = os.fork()
    if child:
        os.close(device)
        return child
    try:
        _serve(device, loss, delay_s, random.Random(seed), parent)
    finally:
        os._exit(1)


def _serve(device: int, loss: float, delay_s: float, dice: random.Random, parent: int) -> None:
    under_way: list[tuple[float, int, bytes]] = []
    number = 0
    while os.getppid() == parent:
        pause_s = max(under_way[0][0] - time.monotonic(), 0.0) if under_way else 0.5
        select.select([device], [], [], pause_s)
        try:
            while True:
                packet = os.read(device, 65536)
                if packet[0] >> 4 == 4 and dice.random() >= loss:
                    number += 1
                    heapq.heappush(under_way, (time.monotonic() + delay_s, number, packet))
        except BlockingIOError:
            pass
        now = time.monotonic()
        while under_way and under_way[0][0] <= now:
            packet = heapq.heappop(under_way)[2]
            os.write(device, packet[:12] + packet[16:20] + packet[12:16] + packet[20:])
