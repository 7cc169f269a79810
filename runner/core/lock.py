"""A lock among the processes of one machine, by flock(2): the kernel gives it up when its holder dies.

Where many machines share a directory, flock(2) may do nothing: see ``lease``.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from runner.core.errors import InfrastructureError, UnknownStateError

_SILENT_S = 2.0
_LIMIT_S = 2 * 3600.0  # a build under emulation takes long; nothing takes longer than this
_PAUSE_S = 0.1


@contextmanager
def locked(path: Path, say: Callable[[str], None], *, limit_s: float = _LIMIT_S) -> Iterator[None]:
    """Hold the lock ``path`` during the block: a file, created where it is absent, or a directory that exists.

    A holder may remove the file before the block ends: whoever waited for it then locks the file that comes next.

    Args:
        say: receives one line that names the lock after two seconds of waiting.

    Raises:
        UnknownStateError: another process held it for ``limit_s`` seconds.
        InfrastructureError: it cannot be opened or locked.
    """
    descriptor = _acquire(path, say, time.monotonic() + limit_s, limit_s)
    try:
        yield
    finally:
        os.close(descriptor)


def _acquire(path: Path, say: Callable[[str], None], deadline: float, limit_s: float) -> int:
    """A descriptor that holds the lock on what ``path`` names now."""
    while True:
        try:
            # Locks on NFS need a descriptor that can write (flock(2)); a directory has none.
            descriptor = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR | os.O_CREAT, 0o666)
        except OSError as error:
            raise _unlockable(path, error) from error
        try:
            _wait(descriptor, path, say, deadline, limit_s)
            if _names(path, descriptor):
                return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


def _wait(descriptor: int, path: Path, say: Callable[[str], None], deadline: float, limit_s: float) -> None:
    began = time.monotonic()
    reported = False
    while not _try_lock(descriptor, path):
        now = time.monotonic()
        if now > deadline:
            raise UnknownStateError(
                f"another process held this lock for {limit_s:g} s",
                where=str(path),
                fix=f"see who holds it (fuser -v {path}); end it if it hangs, then try again",
            )
        if now - began > _SILENT_S and not reported:
            say(f"waiting for another process that holds {path}")
            reported = True
        time.sleep(_PAUSE_S)


def _try_lock(descriptor: int, path: Path) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        raise _unlockable(path, error) from error
    return True


def _names(path: Path, descriptor: int) -> bool:
    """Whether ``path`` still names the open file, and no holder has removed it meanwhile."""
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _unlockable(path: Path, error: OSError) -> InfrastructureError:
    return InfrastructureError(
        f"cannot lock: {error.strerror}", where=str(path), fix="name a directory that you may write to and lock in"
    )
