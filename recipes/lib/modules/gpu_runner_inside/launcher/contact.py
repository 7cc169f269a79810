"""Whether the program connected to the other ranks' programs, as far as it can be seen from outside.

torch.distributed meets at MASTER_PORT: a connection of this node with that port, or what the kernel keeps of one for a
minute after its end (TIME_WAIT), shows that it did. Format: proc(5), /proc/net/tcp.
"""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from typing import Any, Callable, TypeVar

T = TypeVar("T")

_TABLES = ("/proc/net/tcp", "/proc/net/tcp6")
# include/net/tcp_states.h: what is no connection yet: SYN_SENT, SYN_RECV, CLOSE (7), LISTEN (10), NEW_SYN_RECV (12).
_NO_CONNECTION = frozenset(("02", "03", "07", "0A", "0C"))
_OPEN = frozenset(("01", "08"))  # ESTABLISHED, CLOSE_WAIT: of others the kernel does not keep whose they were
_IPV4_IN_IPV6 = "0000000000000000FFFF0000"  # what listens at both has one end in either table
_FIRST_S, _LONGEST_S = 0.5, 60.0


def is_connected(table: str, port: int) -> bool:
    """Whether the kernel's tables of TCP sockets have a connection of this user's, open or ended, of which one end has
    this port. One whose other end is open here, and another user's, is none: anybody can connect to what listens.
    """
    end, user = f":{port:04X}", str(os.getuid())
    connections, others = set(), set()
    for line in table.splitlines():
        words = line.replace(_IPV4_IN_IPV6, "").split(None, 8)
        if len(words) <= 7 or words[3] in _NO_CONNECTION or not (words[1].endswith(end) or words[2].endswith(end)):
            continue
        if words[3] in _OPEN and words[7] != user:
            others.add((words[2], words[1]))
        else:
            connections.add((words[1], words[2]))
    return bool(connections - others)


class Contact:
    """Looks for connections with a port while the program runs: soon after its start, then less and less often.

    Attributes:
        seen: whether there was one; None where there is no such port, or the kernel does not say.
    """

    def __init__(self) -> None:
        self.seen: bool | None = None
        self._port = 0
        self._pause_s = _FIRST_S

    def during(self, port: int, run: Callable[[], T]) -> T:
        """What ``run`` returns. The main thread's own SIGALRM interrupts it for a moment; port 0: nothing is done."""
        if not port:
            return run()
        self._port = port
        before = signal.signal(signal.SIGALRM, self._look)
        signal.setitimer(signal.ITIMER_REAL, self._pause_s)
        try:
            return run()
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0.0)
            signal.signal(signal.SIGALRM, before)
            self._look()

    def _look(self, *_signal: Any) -> None:
        if self.seen:
            return
        tables = []
        for path in _TABLES:
            with suppress(OSError), open(path, encoding="ascii", errors="replace") as file:
                tables.append(file.read())
        if tables:
            self.seen = is_connected("".join(tables), self._port)
        if _signal and not self.seen:
            self._pause_s = min(2 * self._pause_s, _LONGEST_S)
            signal.setitimer(signal.ITIMER_REAL, self._pause_s)
