"""Locks: by flock(2) among the processes of one machine, and leases where many machines share a directory.

The kernel gives a lock up when its holder dies. Where flock(2) may do nothing, a lease is a file that names its holder:
written under another name, then linked, which succeeds once, on NFS too. A dead holder on this machine is recognised by
its process id and start time; one on another machine by a heartbeat that has stopped, measured with the waiter's own
clock: the clocks of two machines are never compared. If two processes ever hold a lease (a machine was suspended for
longer than others waited), nothing breaks: both publish their results by atomic renames.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import threading
import time
from collections.abc import Callable, Container, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from runner.core import files, process_identity
from runner.core.errors import InfrastructureError, UnknownStateError

LIMIT_S = 2 * 3600.0  # a build under emulation takes long; nothing takes longer than this
HEARTBEAT_S = 5.0
PATIENCE_S = 120.0  # attributes of a file may be 60 s old on an NFS client (nfs(5), acregmax)
_SILENT_S = 2.0
_AGAIN_S = 60.0  # between two messages to a process that waits
_PAUSE_S = 0.1
# As reading a link, a directory, a socket, a pipe or another user's private file ends.
_UNREADABLE = (errno.ELOOP, errno.EISDIR, errno.ENXIO, errno.EAGAIN, errno.EACCES)


@contextmanager
def locked(path: Path, say: Callable[[str], None], *, limit_s: float = LIMIT_S) -> Iterator[None]:
    """Hold the lock ``path`` during the block: a file, created where it is absent.

    A holder may remove the file before the block ends: whoever waited for it then locks the file that comes next.

    Args:
        say: receives one line that names the lock after two seconds of waiting.

    Raises:
        UnknownStateError: another process held it for ``limit_s`` seconds.
        InfrastructureError: it cannot be opened or locked.
    """
    with _reported(path, "name a directory that you may write to and lock in"):
        descriptor = _acquire(path, say, limit_s)
    try:
        yield
    finally:
        os.close(descriptor)


def _acquire(path: Path, say: Callable[[str], None], limit_s: float) -> int:
    """A descriptor that holds the lock on what ``path`` names now."""
    began, reported = time.monotonic(), False
    while True:
        # Locks on NFS need a descriptor that can write (flock(2)).
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, files.PRIVATE)
        try:
            with suppress(OSError):  # who can read it can hold it: one of an earlier version was 0644
                os.fchmod(descriptor, files.PRIVATE)
            while not _try_lock(descriptor):
                waited_s = time.monotonic() - began
                if waited_s > limit_s:
                    raise UnknownStateError(
                        f"another process held this lock for {limit_s:g} s",
                        where=str(path),
                        fix=f"see who holds it (fuser -v {path}); end it if it hangs, then try again",
                    )
                if waited_s > _SILENT_S and not reported:
                    say(f"waiting for another process that holds {path}")
                    reported = True
                time.sleep(_PAUSE_S)
            with suppress(FileNotFoundError):  # a holder has removed it meanwhile
                if os.path.samestat(path.stat(), os.fstat(descriptor)):
                    return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@dataclass(frozen=True)
class Lease:
    """A lease's file as read.

    Attributes:
        owner: the holder's mark, unique to this lease; empty where it is no lease: a link, a directory, an empty file.
        since_s: when it was taken, Unix time on the holder's clock.
        beat: inode and modification time in ns; changes while the holder lives.
        user: whose file it is.
    """

    owner: str
    since_s: float
    beat: tuple[int, int]
    user: int


@contextmanager
def leased(
    path: Path, say: Callable[[str], None], *, limit_s: float = LIMIT_S, holders: Container[int] | None = None
) -> Iterator[None]:
    """Hold the lease ``path`` during the block; its directory exists.

    Where what holds nothing cannot be removed (a directory; another user's, where only owners remove), the user holds
    ``path.UID`` instead: it holds up no one, and this user's processes still wait for each other. Where that is blocked
    too, each process holds a lease of its own.

    Args:
        say: receives a line that names the holder after two seconds of waiting, and once a minute from then on.
        holders: users whose leases are waited for; None: of all. That of another holds nothing, and stays.

    Raises:
        UnknownStateError: another process held it for ``limit_s`` seconds.
        InfrastructureError: no file can be made there.
    """
    owner = process_identity.unique()
    with _reported_lease(path):
        handle, path = _take(path, owner, say, limit_s, holders)
    ended = threading.Event()

    def beat() -> None:
        while not ended.wait(HEARTBEAT_S):
            with suppress(OSError):
                os.utime(handle)  # through the descriptor, which is never another holder's

    heart = threading.Thread(target=beat, daemon=True)
    heart.start()
    try:
        yield
    finally:
        ended.set()
        heart.join()
        with suppress(OSError):
            holder = read_lease(path)
            if holder is not None and holder.owner == owner:  # else others took this process for dead
                path.unlink()
        os.close(handle)


def is_abandoned(path: Path) -> bool:
    """Whether the lease exists and its holder is known to be dead. Raises InfrastructureError: it cannot be read."""
    with _reported_lease(path):
        holder = read_lease(path)
    return holder is not None and process_identity.state(holder.owner) == "dead"


def read_lease(path: Path) -> Lease | None:
    """The lease as it is now; None where nothing holds it. Opened anew each time, so that NFS asks its server."""
    try:
        try:
            # Another user may have put a link or a pipe there: neither is followed, or waited for.
            handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
            try:
                status, raw = os.fstat(handle), os.read(handle, 4096)
            finally:
                os.close(handle)
        except OSError as error:
            if error.errno not in _UNREADABLE:
                raise
            status, raw = path.lstat(), b""
    except (FileNotFoundError, NotADirectoryError):
        return None
    beat = (status.st_ino, status.st_mtime_ns)
    try:
        fields = json.loads(raw)
        return Lease(str(fields["owner"]), float(fields["since_s"]), beat, status.st_uid)
    except (ValueError, KeyError, TypeError, RecursionError):
        return Lease("", status.st_mtime, beat, status.st_uid)


def _take(
    path: Path, owner: str, say: Callable[[str], None], limit_s: float, holders: Container[int] | None
) -> tuple[int, Path]:
    """The descriptor of the lease and its path, once it is ours."""
    began = changed = time.monotonic()
    next_message = began + _SILENT_S
    beat: tuple[int, int] | None = None
    while True:
        now = time.monotonic()
        holder = read_lease(path)
        if holder is None:
            if (handle := _create(path, owner)) is not None:
                return handle, path
            continue  # another process was faster
        if holder.beat != beat:
            beat, changed = holder.beat, now
        state, is_strangers = process_identity.state(holder.owner), holders is not None and holder.user not in holders
        patience_s = PATIENCE_S if holder.owner else _SILENT_S
        if is_strangers or state == "dead" or (state == "elsewhere" and now - changed > patience_s):
            try:
                if is_strangers:
                    raise PermissionError
                _remove_dead(path, holder, holders)
            except (PermissionError, IsADirectoryError):
                own = f".{os.geteuid()}"
                path = path.with_name(f"{path.name}~{owner}" if path.name.endswith(own) else f"{path.name}{own}")
            continue
        holder_text = process_identity.described(holder.owner)
        if now - began > limit_s:
            raise UnknownStateError(
                f"{holder_text} has held this lock for {limit_s:g} s",
                where=str(path),
                fix="end that process if it hangs, or remove the lock if it has certainly ended; then try again",
            )
        if now >= next_message:
            age_s = max(0.0, time.time() - holder.since_s)
            say(f"waiting for {holder_text}, which started the same {age_s:.0f} s ago ({path})")
            next_message = now + _AGAIN_S
        time.sleep(_PAUSE_S)


def _create(path: Path, owner: str) -> int | None:
    """Descriptor of the lease's file, created now; None where there is one already."""
    temporary = files.temporary_name(path)
    try:
        handle = _written(temporary, owner)
        with suppress(OSError):  # over NFS, an answer may be lost: the number of links says what happened (open(2))
            os.link(temporary, path)
        if os.fstat(handle).st_nlink > 1:
            return handle
        os.close(handle)
    finally:
        temporary.unlink(missing_ok=True)
    try:
        return _written(path, owner)  # a file system may have no hard links
    except FileExistsError:
        pass
    except OSError as error:
        if error.errno != errno.EPERM or not _appears(path):
            raise
    holder = read_lease(path)  # ours all the same, where sshfs still knows the number of links from before
    return os.open(path, os.O_WRONLY | os.O_NOFOLLOW) if holder is not None and holder.owner == owner else None


def _written(path: Path, owner: str) -> int:
    """Descriptor of a new file with its holder in it. Raises FileExistsError: the name is taken."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    try:
        os.fchmod(handle, 0o644)  # whatever the umask: others must see whom they wait for
        os.write(handle, json.dumps({"owner": owner, "since_s": time.time()}).encode())
        os.fsync(handle)
    except BaseException:  # Ctrl-C too, or the lease would stay until this process is known to be dead
        os.close(handle)
        path.unlink(missing_ok=True)
        raise
    return handle


def _appears(path: Path) -> bool:
    """Whether a file shows up: SFTP has no code for an existing one, so sshfs answers EPERM, and may see it late."""
    until = time.monotonic() + _SILENT_S
    while not path.exists():
        if time.monotonic() > until:
            return False
        time.sleep(_PAUSE_S)
    return True


def _remove_dead(path: Path, dead: Lease, holders: Container[int] | None) -> None:
    """Remove a dead holder's lease. Only one of the waiters does, or another could remove the one that comes next.
    Raises PermissionError: a stranger says to be that one.
    """
    marker = path.with_name(f"{path.name}.{dead.beat[0]}.dead")
    handle = _create(marker, process_identity.unique())
    if handle is None:
        waiter = read_lease(marker)
        if waiter is not None and process_identity.state(waiter.owner) == "dead":
            marker.unlink(missing_ok=True)
        elif waiter is not None and holders is not None and waiter.user not in holders:
            raise PermissionError
        time.sleep(_PAUSE_S)
        return
    os.close(handle)
    try:
        holder = read_lease(path)
        if holder is not None and (holder.owner, holder.beat[0]) == (dead.owner, dead.beat[0]):
            path.unlink(missing_ok=True)
    finally:
        marker.unlink(missing_ok=True)


@contextmanager
def _reported(path: Path, fix: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        where = str(error.filename or path)
        raise InfrastructureError(f"cannot lock: {error.strerror}", where=where, fix=fix) from error


def _reported_lease(path: Path) -> AbstractContextManager[None]:
    return _reported(path, "name a directory that you may write to, on a disk with room (--store DIR or RUNNER_STORE)")
