"""Notices of the batch script, "the time limit is near", through a file of the run directory.

Slurm signals every process of a step: also those that serve a container's file system (squashfuse under Apptainer),
which a signal ends, and with them the container. So the script adds a line to a file, and each launcher tells its own
program alone.
"""

from __future__ import annotations

import os
import signal
import threading
from typing import Callable

FILE = "notices"  # in the run directory; the batch script writes it (runner.backends.schedulers.script_parts)
EVERY_S = 2.0


class Notices:
    """Calls ``tell`` whenever the file has grown since ``begin``, from a thread that takes no signals."""

    def __init__(self, directory: str, tell: Callable[[], None], every_s: float = EVERY_S) -> None:
        self._path = os.path.join(directory, FILE)
        self._tell = tell
        self._every_s = every_s
        self._ended = threading.Event()
        self._size = self._size_now()

    def begin(self) -> None:
        """Start to look. A signal that this thread took would not wake the launcher: all are blocked in it."""
        before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            threading.Thread(target=self._look, daemon=True).start()  # which inherits the mask
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def end(self) -> None:
        """Look no more."""
        self._ended.set()

    def _look(self) -> None:
        while not self._ended.wait(self._every_s):
            size = self._size_now()
            if size > self._size:
                self._size = size
                self._tell()

    def _size_now(self) -> int:
        # Opened, and not looked up: a network file system asks its server again when a file is opened.
        try:
            with open(self._path, "rb") as file:
                return os.fstat(file.fileno()).st_size
        except OSError:
            return 0
