"""How a benchmark marks the begin and the end of its timed window for the launcher's watcher (node/watch.py).

The program says only *when*: what is read then is read by the launcher, which knows nothing of the program's figures.
A Unix socket, because a mark can be answered: the window begins after the readings of its begin are done, on every
runtime whose container holds launcher and program both, whatever its file system is.
"""

from __future__ import annotations

import os
import socket
import struct

VARIABLE = "RUNNER_WATCHER"  # the socket's abstract name; set for the node's first rank alone
_PATIENCE = struct.pack("ll", 2, 0)  # seconds, microseconds


def mark(which: str) -> bool:
    """Mark ``begin`` or ``end``; whether the watcher has read its counters. It never raises, and waits 2 s at most.

    ``begin0``, ``end0`` and so on mark further windows, of which only the clocks are read.
    """
    name = os.environ.get(VARIABLE)
    if not name:
        return False
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
            # By the kernel, which lets it wait its turn: Python would be refused while strangers fill the queue.
            for way in (socket.SO_SNDTIMEO, socket.SO_RCVTIMEO):
                sock.setsockopt(socket.SOL_SOCKET, way, _PATIENCE)
            sock.connect("\0" + name)
            sock.sendall(which.encode("ascii"))
            sock.shutdown(socket.SHUT_WR)
            return sock.recv(8) == b"done"
    except OSError:
        return False
