"""Waiting for another process that does the same work: never silently, never for ever."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from runner.errors import InfrastructureError, UnknownStateError

_SILENT_S = 2.0
_LIMIT_S = 2 * 3600.0  # a build under emulation takes long; nothing takes longer than this
_PAUSE_S = 0.1


@contextmanager
def held(path: Path, say: Callable[[str], None], *, limit_s: float = _LIMIT_S) -> Iterator[None]:
    """Hold an flock(2) on ``path``: a file that is made where it is absent, or a directory that exists.

    A holder that dies gives it up. After two seconds of waiting ``say`` is told what is waited for.

    Raises:
        UnknownStateError: somebody else held it for ``limit_s`` seconds.
        InfrastructureError: it cannot be opened or locked.
    """
    try:
        # Locks on NFS need a descriptor that can write (flock(2)); a directory has none.
        descriptor = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR | os.O_CREAT, 0o666)
    except OSError as error:
        raise _unlockable(path, error) from error
    try:
        _wait(descriptor, path, say, limit_s)
        yield
    finally:
        os.close(descriptor)


def _wait(descriptor: int, path: Path, say: Callable[[str], None], limit_s: float) -> None:
    began = time.monotonic()
    told = False
    while not _locked(descriptor, path):
        waited = time.monotonic() - began
        if waited > limit_s:
            raise UnknownStateError(
                f"another process held this lock for {limit_s:g} s",
                where=str(path),
                fix=f"see who holds it (fuser -v {path}); end it if it hangs, then try again",
            )
        if waited > _SILENT_S and not told:
            say(f"waiting for another process that holds {path}")
            told = True
        time.sleep(_PAUSE_S)


def _locked(descriptor: int, path: Path) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        raise _unlockable(path, error) from error
    return True


def _unlockable(path: Path, error: OSError) -> InfrastructureError:
    return InfrastructureError(
        f"cannot lock: {error.strerror}", where=str(path), fix="name a directory that you may write to and lock in"
    )
