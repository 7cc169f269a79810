"""A lock on a directory that many machines share, where flock(2) may do nothing.

The lock is a file that open(2) with O_EXCL makes, which NFS 3 and later make exclusive across machines. It says who
holds it. A holder that died on this machine is known by its process id and start time; one on another machine by a
heartbeat that has stopped, watched with the waiter's own clock: no two clocks are ever compared.

Should two ever hold it (a machine that slept longer than the patience of others), nothing breaks: what they make is
published by atomic renames.
"""

from __future__ import annotations

import errno
import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from runner.errors import InfrastructureError, UnknownStateError
from runner.files import process_identity

HEARTBEAT_S = 5.0
# Attributes of a file may be 60 s old on an NFS client (nfs(5), acregmax).
PATIENCE_S = 120.0
LIMIT_S = 2 * 3600.0
_SILENT_S = 2.0
_AGAIN_S = 60.0  # between two words to somebody who waits
_PAUSE_S = 0.1


@dataclass(frozen=True)
class Claim:
    """A lock file as read.

    Attributes:
        owner: the holder's mark, unique to this claim; empty where the file is still, or for ever, empty.
        since_s: when it was made, Unix time on the holder's clock.
        beat: changes while the holder lives (inode, modification time in ns).
    """

    owner: str
    since_s: float
    beat: tuple[int, int]


@contextmanager
def claimed(path: Path, say: Callable[[str], None], *, limit_s: float = LIMIT_S) -> Iterator[None]:
    """Hold the lock ``path`` (its directory exists) for the length of the block; waiting tells for whom.

    Raises:
        UnknownStateError: somebody else held it for ``limit_s`` seconds.
        InfrastructureError: no file can be made there.
    """
    owner = process_identity.unique()
    handle = _wait(path, owner, say, limit_s)
    beating = threading.Event()
    heart = threading.Thread(target=_beat, args=(handle, beating), daemon=True)
    heart.start()
    try:
        yield
    finally:
        beating.set()
        heart.join()
        _release(path, owner)
        os.close(handle)


def abandoned(path: Path) -> bool:
    """Whether the lock is there and its holder is known to be dead."""
    holder = _seen(path)
    return holder is not None and process_identity.state(holder.owner) == "dead"


def read(path: Path) -> Claim | None:
    """Who holds the lock; None for nobody. Opened anew each time, so that NFS asks its server."""
    try:
        with path.open("rb") as file:
            found = os.fstat(file.fileno())
            raw = file.read(4096)
    except (FileNotFoundError, NotADirectoryError):
        return None
    beat = (found.st_ino, found.st_mtime_ns)
    try:
        said = json.loads(raw)
        return Claim(str(said["owner"]), float(said["since_s"]), beat)
    except (ValueError, KeyError, TypeError):
        return Claim("", found.st_mtime, beat)


def _wait(path: Path, owner: str, say: Callable[[str], None], limit_s: float) -> int:
    began = time.monotonic()
    next_word = began + _SILENT_S
    beat: tuple[int, int] | None = None
    changed = began
    while True:
        handle = _made(path, owner)
        if handle is not None:
            return handle
        now = time.monotonic()
        holder = _seen(path)
        if holder is None:
            continue  # given back meanwhile
        if holder.beat != beat:
            beat, changed = holder.beat, now
        state = process_identity.state(holder.owner)
        if state == "dead" or (state == "elsewhere" and now - changed > PATIENCE_S):
            _bury(path, holder)
            continue
        if now - began > limit_s:
            raise UnknownStateError(
                f"{process_identity.described(holder.owner)} has held this lock for all of {limit_s:g} s",
                where=str(path),
                fix="end that process if it hangs; if it is gone for sure, remove the lock; then try again",
            )
        if now >= next_word:
            age_s = max(0.0, time.time() - holder.since_s)
            say(f"waiting for {process_identity.described(holder.owner)}, which does this since {age_s:.0f} s ({path})")
            next_word = now + _AGAIN_S
        time.sleep(_PAUSE_S)


def _made(path: Path, owner: str) -> int | None:
    """Descriptor of the lock file, made now; None where somebody's is there."""
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    except FileExistsError:
        return None
    except OSError as error:
        if error.errno == errno.EPERM and _appears(path):
            return None
        raise _unlockable(path, error) from error
    try:
        os.write(handle, json.dumps({"owner": owner, "since_s": time.time()}).encode())
        os.fsync(handle)
    except BaseException as error:  # Ctrl-C too, or the lock would stand until somebody finds its holder dead
        os.close(handle)
        path.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise _unlockable(path, error) from error
        raise
    return handle


def _appears(path: Path) -> bool:
    """Whether somebody's lock shows: SFTP has no word for that, so sshfs says EPERM, and may learn of the file late."""
    until = time.monotonic() + _SILENT_S
    while not path.exists():
        if time.monotonic() > until:
            return False
        time.sleep(_PAUSE_S)
    return True


def _seen(path: Path) -> Claim | None:
    try:
        return read(path)
    except OSError as error:
        raise _unlockable(path, error) from error


def _bury(path: Path, dead: Claim) -> None:
    """Remove a dead holder's lock. Of all who found it dead one does so, or a fresh lock might be taken for it."""
    grave = path.with_name(f"{path.name}.{dead.owner or dead.beat[0]}.dead")
    handle = _made(grave, process_identity.unique())
    if handle is None:
        digger = _seen(grave)
        if digger is not None and process_identity.state(digger.owner) == "dead":
            grave.unlink(missing_ok=True)
        time.sleep(_PAUSE_S)
        return
    os.close(handle)
    try:
        found = _seen(path)
        if found is not None and (found.owner, found.beat[0]) == (dead.owner, dead.beat[0]):
            path.unlink(missing_ok=True)
    finally:
        grave.unlink(missing_ok=True)


def _release(path: Path, owner: str) -> None:
    """Give it back, unless others have taken us for dead and it is theirs now."""
    with suppress(OSError):
        holder = read(path)
        if holder is not None and holder.owner == owner:
            path.unlink()


def _beat(handle: int, ended: threading.Event) -> None:
    """Touch the lock through its descriptor: never a lock that has become another's."""
    while not ended.wait(HEARTBEAT_S):
        with suppress(OSError):
            os.utime(handle)


def _unlockable(path: Path, error: OSError) -> InfrastructureError:
    return InfrastructureError(
        f"cannot lock: {error.strerror}",
        where=str(path),
        fix="name a directory that you may write to, on a disk with room (--store DIR or RUNNER_STORE)",
    )
