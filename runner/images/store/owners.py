"""Who owns what lies in a store, whose files are believed there, and what to do where it cannot be read or written."""

from __future__ import annotations

import os
import pwd
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path

from runner.core import ownership
from runner.core.errors import InfrastructureError, RefusedError, RunnerError
from runner.core.ownership import owner_of, status_of


def unreadable(path: Path, error: OSError) -> InfrastructureError:
    """The error to raise for a file or directory of the store that cannot be read."""
    return InfrastructureError(
        f"a file of the image store cannot be read: {error.strerror}",
        where=str(path),
        fix="ask its owner for permission, or convert the image into a store of your own (--store DIR)",
    )


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turns an OSError of the block into an InfrastructureError about ``path``."""
    try:
        yield
    except OSError as error:
        raise InfrastructureError(
            f"cannot write to the image store: {error.strerror}",
            where=str(path),
            fix="free space, or name a store that you may write to (--store DIR or RUNNER_STORE)",
        ) from error


def others_write(store: Path) -> bool:
    """Whether users other than the store's owner may write to it."""
    with suppress(OSError):
        return store.stat().st_mode & (stat.S_IWGRP | stat.S_IWOTH) != 0
    return False


def left_by_stranger(path: Path, store: Path) -> bool:
    """Whether it is, or leads to, what one who is neither the store's owner nor trusted has put there, as it was open
    then; not where it may be root's, in a container of an ordinary user.
    """
    with suppress(OSError):
        known = (owner_of(status_of(store)), ownership.unmapped_user())
        users = (owner_of(status_of(path, follow=follow)) for follow in (False, True))
        return any(each not in known and not ownership.is_trusted(each) for each in users)
    return False


def believed_users(store: Path) -> frozenset[int]:
    """The caller, root and the store's owner; none, where anybody could have made it, or a user beside these may
    exchange it. Raises OSError; RefusedError: as ``believed``.
    """
    return _believed_in(store, owner_of(status_of(store)), os.geteuid())


def believed(path: Path, store: Path) -> bool:
    """Whether a file is of ``believed_users``; of a link, both link and target. Raises
    RefusedError: a stranger could exchange the whole store.
    """
    with suppress(OSError):
        return {owner_of(status_of(path, follow=False)), owner_of(status_of(path))} <= believed_users(store)
    return False


@contextmanager
def opened(store: Path) -> Iterator[Path | None]:
    """The store by this process's handle, where things may be removed: whatever has its name by then, they are those
    that were looked at. None: it is not there. Raises RefusedError: as ``believed``; InfrastructureError: it cannot be
    read.
    """
    try:
        handle = os.open(store, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        yield None
        return
    except OSError as error:
        raise unreadable(store, error) from error
    at = f"/proc/{os.getpid()}/fd/{handle}"
    try:
        owner = owner_of(status_of(handle))  # after it was opened: what leads there may come and go
        whose = ownership.led_by(store, owner)
        if owner in (0, os.geteuid()) and (whose or ownership.may_be_strangers(store)):
            raise _exchangeable(store, whose)
        check_sticky(store)
        yield Path(at)
    except RunnerError as error:
        error.where = error.where.replace(at, str(store))
        raise
    finally:
        os.close(handle)


def stranger(path: Path, store: Path, *, gone: str = "") -> str:
    """The user whose file it is, or who made a link of that name, or who made the store where none is believed; else
    empty. ``gone``: what is said of a file that is not there.
    """
    if believed(path, store):
        return ""
    try:
        owner, users = owner_of(status_of(path, follow=False)), believed_users(store)
        return user(owner_of(status_of(path if users else store)) if not users or owner in users else owner)
    except FileNotFoundError:
        return gone


def may_replace(path: Path) -> bool:
    """Whether the caller should replace this file: one of another user stays, even where it could be overwritten."""
    with suppress(OSError):
        return path.lstat().st_uid == os.geteuid()
    return True


def is_own(path: Path) -> bool:
    """Whether the file is the caller's."""
    with suppress(OSError):
        return path.lstat().st_uid == os.geteuid()
    return False


def may_remove(path: Path) -> bool:
    """Whether the caller can remove this file (unlink(2): in a sticky directory only its owner, or the directory's)."""
    with suppress(OSError):
        above = path.parent.stat()
        owners = {0, path.lstat().st_uid, above.st_uid}
        return os.access(path.parent, os.W_OK | os.X_OK) and (
            not above.st_mode & stat.S_ISVTX or os.geteuid() in owners
        )
    return False


def share(path: Path, store: Path) -> None:
    """Let those who may write to the store read this file of the caller's, or write to this directory of it; not to the
    file, whatever the store's default ACL says.

    In a store that only its owner writes to, permissions are left to the umask.
    """
    with suppress(OSError):
        above = store.stat()
        # Opened once: another user could put a link to a private file of the caller's in its place.
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            own = os.fstat(handle)
            is_directory = stat.S_ISDIR(own.st_mode)
            if not others_write(store) or own.st_uid != os.geteuid():
                return
            if not is_directory and (not stat.S_ISREG(own.st_mode) or own.st_nlink > 1):
                return
            if own.st_gid != above.st_gid:
                with suppress(OSError):  # not a group of the caller's
                    os.fchown(handle, -1, above.st_gid)
            mode = stat.S_IMODE(above.st_mode)
            os.fchmod(handle, mode if is_directory else stat.S_IMODE(own.st_mode) & ~0o022 | mode & 0o044)
        finally:
            os.close(handle)


def user(uid: int) -> str:
    """The login name of a user id, or the number."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"user {uid}"


@lru_cache
def _believed_in(store: Path, owner: int, user: int) -> frozenset[int]:
    whose = ownership.led_by(store, owner)
    if owner in (0, user):
        if whose or ownership.is_first_come(store):
            raise _exchangeable(store, whose)
        return frozenset() if owner != user and _of_all(store) else frozenset((user, 0))
    # In a container of an ordinary user, the store's owner and any stranger look the same.
    if owner == ownership.unmapped_user():
        return frozenset((user, 0))
    # A stranger may exchange all that is in his store, at any time: this user's files, too.
    return frozenset() if whose or _of_all(store) or ownership.may_be_strangers(store) else frozenset((user, 0, owner))


def check_sticky(store: Path) -> None:
    """Raises RefusedError: all may exchange what is in this user's store, who can close it; or as ``believed``."""
    with suppress(OSError):
        believed_users(store)
        if owner_of(status_of(store)) == os.geteuid() and (whose := _of_all(store)):
            raise _exchangeable(store, whose)


def _of_all(store: Path) -> str:
    """Whose it is, in words, where all may exchange what is in it, and can come to it. Raises OSError."""
    about = status_of(store)
    is_closed = about.st_mode & (stat.S_IWOTH | stat.S_ISVTX) != stat.S_IWOTH or ownership.is_kept_in(store)
    return "" if is_closed else f"{ownership.open_to(about, store)} (no sticky bit)"


def _exchangeable(store: Path, whose: str) -> RefusedError:
    with suppress(OSError):  # what leads there has gone by now
        whose = whose or ownership.exchangeable_by(store)
    what = f"the image store is {whose or 'where others made a directory'}: another user could exchange all of it"
    fix = f"name another store, by --store DIR or RUNNER_STORE{whose and f'; {ownership.way_out(store, whose)}'}"
    return RefusedError(what, where=str(store), fix=fix)
