"""The program as a child of the launcher: started from an argument list, sent signals, waited for."""

from __future__ import annotations

import ctypes
import errno
import os
import resource
import signal
import subprocess
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Iterator, Mapping, Sequence

from gpu_runner_inside.launcher import first_line, notices

_OF_SCRIPTS = (errno.ENOENT, errno.ENOEXEC)  # execve(2): the interpreter is not there; no known format
FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
_ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_NOTICES = (signal.SIGUSR1, signal.SIGUSR2)  # "the time limit is near": by default they would end a program
_PR_SET_PDEATHSIG = 1  # linux/prctl.h


class NotStartedError(Exception):
    """The program could not be started. ``code``: ``program-not-found`` or ``program-not-executable``."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class StoppedError(Exception):
    """A signal ended the launcher before its program started. ``number``: which."""

    def __init__(self, number: int) -> None:
        super().__init__(f"stopped by {signal.Signals(number).name} before the program was started")
        self.number = number


@dataclass(frozen=True)
class Ended:
    """How the program ended: exactly one of ``code`` and ``signal`` is set. Times in seconds of processor time."""

    code: int | None
    signal: int | None
    max_rss_bytes: int
    user_s: float
    system_s: float

    @property
    def status(self) -> int:
        """As a shell reports it: the exit code, or 128 plus the signal's number."""
        return self.code if self.code is not None else 128 + (self.signal or 0)


class Relay:
    """Forwards the launcher's signals to the program; before that runs, SIGTERM, SIGINT and SIGHUP end the launcher.

    Attributes:
        forwarded: numbers of the signals handed on, in order.
    """

    def __init__(self) -> None:
        self.forwarded: list[int] = []
        self._stopped = False
        self._pid: int | None = None
        for number in FORWARDED:
            signal.signal(number, self._handle)

    def run(
        self, argv: Sequence[str], env: Mapping[str, str], run_dir: str | None = None, *, umask: int | None = None
    ) -> Ended:
        """Start the program and wait for its end. ``umask``: the program's; None for this process's.

        Args:
            run_dir: the run directory, through which the batch script gives notice of the time limit.

        Raises:
            NotStartedError: not there, or not executable.
            StoppedError: a signal came first.
        """
        prctl = getattr(ctypes.CDLL(None, use_errno=True), "prctl", None)
        before = signal.pthread_sigmask(signal.SIG_BLOCK, FORWARDED)
        launcher = os.getpid()

        def in_child() -> None:
            # A launcher that is killed outright takes its program along, which would otherwise stay behind.
            if prctl is not None:
                prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))
                if os.getppid() != launcher:  # killed before the kernel was asked
                    os.kill(os.getpid(), signal.SIGKILL)
            # Slurm signals every process of a step, not only us: a program without a handler lives on.
            for number in _NOTICES:
                signal.signal(number, signal.SIG_IGN)
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            if umask is not None:
                os.umask(umask)

        try:
            # One thread lives here yet, so code between fork and exec is safe.
            child = subprocess.Popen(list(argv), env=dict(env), preexec_fn=in_child)  # noqa: PLW1509
            self._pid = child.pid
        except OSError as error:
            code = "program-not-found" if isinstance(error, FileNotFoundError) else "program-not-executable"
            why = first_line.problem(argv[0], env.get("PATH")) if error.errno in _OF_SCRIPTS else ""
            raise NotStartedError(code, ": ".join(filter(None, (argv[0], error.strerror, why)))) from error
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        given = None if run_dir is None else notices.Notices(run_dir, self._notify)
        if given is not None:
            given.begin()
        _pid, status, used = os.wait4(child.pid, 0)
        if given is not None:
            given.end()
        ignore_signals()  # the program has ended: a signal from here on must not stop the last record
        self._pid = None
        child.returncode = 0  # reaped here, for the resource usage: Popen need not wait for it
        killed = os.WTERMSIG(status) if os.WIFSIGNALED(status) else None
        return Ended(
            code=None if killed is not None else os.WEXITSTATUS(status),
            signal=killed,
            max_rss_bytes=_rss_bytes(used),
            user_s=used.ru_utime,
            system_s=used.ru_stime,
        )

    def _notify(self) -> None:
        """SIGUSR1 to the program; where it is a wrapper that does not listen, to those below it that do."""
        pid = self._pid
        if pid is None:
            return
        for listener in _listeners(pid, signal.SIGUSR1, _children()):
            self.forwarded.append(signal.SIGUSR1)
            _send(listener, signal.SIGUSR1)

    def _handle(self, number: int, _frame: Any) -> None:
        if self._pid is not None:
            if number in _NOTICES and not _catches(self._pid, number):
                return
            self.forwarded.append(number)
            _send(self._pid, number)
        elif number in _ENDING and not self._stopped:
            self._stopped = True  # once: a second one would interrupt what is done about the first
            raise StoppedError(number)


def _send(pid: int, number: int) -> None:
    """A signal to a process that may have ended, or have become another user's, as set-user-id programs do."""
    with suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def _catches(pid: int, number: int) -> bool:
    """Whether the process has a handler for the signal (``SigCgt`` of proc(5)); False where that can't be read."""
    try:
        with open(f"/proc/{pid}/status", "rb") as status:
            caught = next(line for line in status if line.startswith(b"SigCgt:"))
    except (OSError, StopIteration):
        return False
    return bool(int(caught.split()[1], 16) >> (number - 1) & 1)


def _listeners(pid: int, number: int, children: Mapping[int, Sequence[int]]) -> Iterator[int]:
    """The process if it has a handler for the signal; else those of its descendants that have, nearest first."""
    if _catches(pid, number):
        yield pid
        return
    for child in children.get(pid, ()):
        yield from _listeners(child, number, children)


def _children() -> dict[int, list[int]]:
    """Process -> its children, of all that /proc shows (proc(5), stat: the fourth field is the parent)."""
    found: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            with suppress(OSError, ValueError, IndexError):
                with open(f"/proc/{name}/stat", "rb") as file:
                    parent = int(file.read().rpartition(b")")[2].split()[1])
                found.setdefault(parent, []).append(int(name))
    return found


def ignore_signals() -> None:
    """From here on nothing keeps the launcher from writing its last record."""
    for number in FORWARDED:
        signal.signal(number, signal.SIG_IGN)


def _rss_bytes(used: resource.struct_rusage) -> int:
    return used.ru_maxrss * 1024  # Linux reports KiB (getrusage(2))
