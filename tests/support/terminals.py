"""A person at a terminal, for commands that need one."""

import fcntl
import os
import pty
import select
import struct
import termios
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

ROWS, COLUMNS = 33, 111


class Terminal:
    """A command in a terminal of that size. ``seen``: all that it showed."""

    _at = 0  # of what was waited for last

    def __init__(self, argv: Sequence[str], env: Mapping[str, str], cwd: Path) -> None:
        self.seen = ""
        self.pid, self._terminal = pty.fork()
        if not self.pid:
            os.chdir(cwd)
            os.execvpe(argv[0], list(argv), env)  # the command under test
        fcntl.ioctl(self._terminal, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))

    def type(self, text: str) -> None:
        os.write(self._terminal, text.encode())

    def until(self, text: str, timeout_s: float = 120.0) -> None:
        """Until it shows ``text``, after what was waited for before."""
        end = time.monotonic() + timeout_s
        while (at := self.seen.find(text, self._at)) < 0:
            assert time.monotonic() < end, f"not within {timeout_s:g} s: {text!r} in {self.seen[-2000:]!r}"
            assert self._read(), f"it ended without {text!r}: {self.seen[-2000:]!r}"
        self._at = at + len(text)

    def end(self, timeout_s: float = 60.0) -> int:
        """Its exit code, once it has ended."""
        end = time.monotonic() + timeout_s
        while self._read():
            assert time.monotonic() < end, f"it goes on: {self.seen[-2000:]!r}"
        os.close(self._terminal)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])

    def _read(self) -> bool:
        if select.select([self._terminal], [], [], 1.0)[0]:
            with suppress(OSError):
                if got := os.read(self._terminal, 4096):
                    self.seen += got.decode(errors="replace")
                    return True
            return False
        return True
