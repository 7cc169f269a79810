"""Files: what kind of file system they are on, their hashes, and replacing one in one step."""

from __future__ import annotations

import errno
import hashlib
import os
import stat
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, TypeVar

from runner.core import ownership, process_identity
from runner.core.errors import UsageError

T = TypeVar("T")
_Check = Callable[[int, int], None]  # raises OSError about what is open, and what it is in

# f_type of statfs(2), from linux/magic.h and, where they are not in the kernel, the projects' own sources. All others
# count as network file systems: NFS, Lustre, GPFS, BeeGFS, CIFS, Ceph, FUSE, and what is yet to come.
_LOCAL = frozenset((
    0xEF53, 0x58465342, 0x9123683E, 0x2FC12FC1, 0xF2F52010,  # ext2 to ext4, xfs, btrfs, zfs, f2fs
    0x01021994, 0x858458F6, 0x794C7630, 0x4D44, 0x5346544E,  # tmpfs, ramfs, overlayfs, vfat, ntfs
    0x3153464A, 0x52654973, 0xCA451A4E, 0xF15F,  # jfs, reiserfs, bcachefs, ecryptfs
))  # fmt: skip
_STATFS_BYTES = 256  # struct statfs has 120 (x86-64, arm64); f_type comes first, a long
_ATTEMPTS = 5
MOST = 1 << 28  # bytes of a file that is read whole


@contextmanager
def temporary_directory() -> Iterator[Path]:
    """A new directory of this user alone in the ``temporary_place``, gone after the block."""
    import tempfile  # few need one

    with tempfile.TemporaryDirectory("", "gpu-runner-", temporary_place()) as name:
        yield Path(name)


def temporary_place() -> str:
    """TMPDIR, or /tmp where others could exchange what lies in that; for programs, too, which run what they make."""
    import tempfile

    place = tempfile.gettempdir()
    return "/tmp" if ownership.exchangeable_by(Path(place)) else place


def is_local(path: Path) -> bool:
    """Whether other machines cannot change what is there; False where that is unknown."""
    return magic(path) in _LOCAL


def is_on_own_disk(path: Path) -> bool:
    """Whether what is there, or a link on the way, lies on this machine's own disk, where all may write: on another
    machine the path leads to what whoever makes it first there has put.
    """
    real = Path(os.path.realpath(path))  # Path.resolve raises where links lead in circles
    there = next(each for each in (real, *real.parents) if os.path.exists(each))  # noqa: PTH110  # it raises
    places = [(real, there), *((link, link.parent) for link in ownership.links_to(path))]
    return any(not {*_OF_ALL}.isdisjoint(place.parents) and is_local(there) for place, there in places)


_OF_ALL = (Path("/tmp"), Path("/var/tmp"), Path("/dev/shm"))  # which each machine has (hier(7))


def magic(path: Path) -> int | None:
    """The type of the file system that holds ``path``, as statfs(2) reports it; None where it does not."""
    import ctypes  # few ask

    buffer = ctypes.create_string_buffer(_STATFS_BYTES)
    try:
        failed = ctypes.CDLL(None, use_errno=True).statfs(os.fsencode(path), buffer)
    except (OSError, AttributeError):  # no C library with such a function
        return None
    return None if failed else ctypes.c_long.from_buffer(buffer).value & 0xFFFFFFFF


def again_if_stale(read: Callable[[], T]) -> T:
    """What ``read`` returns; where a file was replaced under it (ESTALE, on NFS), what it returns when called again, up
    to five times. Raises OSError.
    """
    for _ in range(_ATTEMPTS - 1):
        try:
            return read()
        except OSError as error:
            if error.errno != errno.ESTALE:
                raise
    return read()


class UnusableFileError(OSError):
    """Something lies there that is no file to read: a pipe, a device, a loop of links, or more than may be read."""


def open_regular(path: Path, owner: int | None = None) -> BinaryIO:
    """The file, to be read; ``owner``: whose it must be, None for anybody's. A pipe would block for ever, and a device
    never end: neither is opened. Raises UnusableFileError: it is no regular file, or its links lead nowhere; OSError:
    it cannot be opened, or is of another owner.
    """
    file = _regular(path, path)
    if owner not in (None, ownership.owner_of(ownership.status_of(file.fileno()))):
        file.close()
        raise PermissionError(errno.EACCES, "another user's", str(path))
    return file


def _regular(
    name: Path | str, path: Path, above: int | None = None, flags: int = 0, check: _Check | None = None
) -> BinaryIO:
    try:
        handle = _opened(name, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC | flags, above, check)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO, errno.ENODEV):  # links; a socket; a device without a driver
            raise UnusableFileError(error.errno, error.strerror, str(path)) from None
        raise
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise UnusableFileError(errno.EINVAL, "no regular file", str(path))
    return os.fdopen(handle, "rb")


def open_below(directory: Path, name: str) -> BinaryIO:
    """A regular file below a directory, reached through no link: where others write, one could lead anywhere. Raises
    OSError; UnusableFileError: it is a link, or no regular file.
    """
    return _open_below(os.open(directory, _ONLY_TO_ENTER), name, directory / name)


_ONLY_TO_ENTER = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC  # it may not be to be listed


def _open_below(directory: int, name: str, path: Path, check: _Check | None = None) -> BinaryIO:
    above, _, last = name.rpartition("/")
    handle = _entered(directory, above, check)
    try:
        return _regular(last, path, handle, os.O_NOFOLLOW, check)
    finally:
        os.close(handle)


def _entered(handle: int, below: str, check: _Check | None = None) -> int:
    """A directory below another one, through no link, in whose place it is open."""
    for part in filter(None, below.split("/")):
        try:
            inner = _opened(part, _ONLY_TO_ENTER | os.O_NOFOLLOW, handle, check)
        finally:
            os.close(handle)
        handle = inner
    return handle


def _opened(name: Path | str, flags: int, above: int | None, check: _Check | None) -> int:
    """A handle, open only where ``check`` has nothing against it."""
    handle = os.open(name, flags, dir_fd=above)
    try:
        if check is not None and above is not None:
            check(handle, above)
    except OSError:
        os.close(handle)
        raise
    return handle


class Folder:
    """A directory by its path, absolute, whose files are reached through no link, and only as long as it is the one
    that it was at first: another user's could give its place to a link to a directory of this user's alone.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._first: os.stat_result | None = None
        with suppress(OSError, ValueError):
            os.close(self._enter())

    def _enter(self) -> int:
        """A handle of it. Raises OSError: it is not there, or not the one that it was."""
        if self._first is None:
            try:
                handle = _entered(os.open("/", _ONLY_TO_ENTER), str(self.path))
            except NotADirectoryError:  # there is a link on the way
                handle = _entered(os.open("/", _ONLY_TO_ENTER), str(ownership.real_path(self.path)))
            self._first = os.fstat(handle)
            return handle
        handle = os.open(self.path, _ONLY_TO_ENTER)
        if not self.is_first(now := os.fstat(handle)):
            if now.st_ino == self._first.st_ino and not ownership.exchangeable_by(self.path):  # mounted anew
                self._first = now
                return handle
            os.close(handle)
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), str(self.path))
        return handle

    def is_first(self, now: os.stat_result) -> bool:
        """Whether what lies there now is the directory that did at first."""
        return self._first is not None and os.path.samestat(now, self._first)

    def open(self, name: str) -> BinaryIO:
        """As ``open_below``. Raises UnusableFileError: as ``_check``."""
        return _open_below(self._enter(), name, self.path / name, self._check)

    def _check(self, inner: int, above: int) -> None:
        """Refuse what a stranger has put into a directory that all may write to, on the way to a file and the file; and
        in a stranger's, or such a one, what another user than its owner has, and he may not read: who may write to
        where it was can have moved it there. Raises UnusableFileError.
        """
        assert self._first is not None
        status, whose = ownership.status_of(inner), ownership.owner_of(self._first)
        is_mine = ownership.is_trusted(whose)
        if is_mine and ownership.is_put_by_stranger(status, ownership.status_of(above)):
            raise UnusableFileError(errno.EINVAL, "another user has put it there, as all may", str(self.path))
        is_others = ownership.owner_of(status) != whose and (not is_mine or ownership.others_may_write(self._first))
        reads = stat.S_IROTH | (stat.S_IRGRP if status.st_gid == self._first.st_gid else 0)
        if is_others and not status.st_mode & reads:
            raise UnusableFileError(errno.EINVAL, "moved there from another user's files", str(self.path))

    def content_of(self, name: str, most: int = MOST) -> bytes:
        """As ``read_bytes``."""
        return _content(lambda: self.open(name), self.path / name, most)

    def names_in(self, name: str) -> frozenset[str]:
        """The names in a directory below it, by one listing; none where it is not there, or a link is."""

        def names() -> frozenset[str]:
            entered = _entered(self._enter(), name, self._check)
            try:
                return _names_in(Path(f"/proc/self/fd/{entered}"))
            finally:
                os.close(entered)

        return _none_if_gone(names)

    def time_s(self, name: str) -> float:
        """When a file below it, or a link there, was last changed, Unix time; 0 where there is none."""
        above, _, last = name.rpartition("/")
        with suppress(OSError):
            entered = _entered(self._enter(), above, self._check)
            try:
                return os.stat(last, dir_fd=entered, follow_symlinks=False).st_mtime
            finally:
                os.close(entered)
        return 0.0

    def newest_s(self) -> float:
        """The latest such time of all that are below it, at any depth; 0 without any."""
        times = [0.0]
        with suppress(OSError):
            entered = self._enter()
            try:
                for _, _, names, at in os.fwalk(dir_fd=entered):
                    for name in names:
                        with suppress(OSError):
                            times.append(os.stat(name, dir_fd=at, follow_symlinks=False).st_mtime)
            finally:
                os.close(entered)
        return max(times)


def resolved(path: Path) -> Path:
    """What a user means by a path, by its real path, to be used from here on without another look at where it leads.
    Raises UsageError: that is through another user's link, which leads where that user likes, or in circles.
    """
    try:
        return ownership.real_path(path)
    except OSError as error:
        what, where = error.strerror or str(error), str(error.filename or path)
        fix = getattr(error, "fix", "") or "name it by a path that starts with / and leads to it"
        raise UsageError(what, where=where, fix=fix) from None


def open_named(path: Path) -> BinaryIO:
    """The regular file that a user means by a path: what is read there may become known to others, and no other user is
    to choose it. Raises UsageError: as ``resolved``; OSError: it cannot be opened, or is no regular file.
    """
    return open_below(Path("/"), str(resolved(path))[1:])


def read_bytes(path: Path, most: int = MOST) -> bytes:
    """The file's content. Raises OSError; UnusableFileError: it is no regular file, or longer than ``most`` bytes."""
    return _content(lambda: open_regular(path), path, most)


def read_below(directory: Path, name: str, most: int = MOST) -> bytes:
    """The same of a file below a directory, as ``open_below`` finds it."""
    return _content(lambda: open_below(directory, name), directory / name, most)


def read_named(path: Path, most: int = MOST) -> bytes:
    """The same of a file that a user means, as ``open_named`` finds it; raises as that, too."""
    return _content(lambda: open_named(path), path, most)


def _content(opened: Callable[[], BinaryIO], path: Path, most: int) -> bytes:
    def read() -> bytes:
        with opened() as file:
            if os.fstat(file.fileno()).st_size > most:
                raise UnusableFileError(errno.EFBIG, f"longer than {most} bytes", str(path))
            return file.read()

    return again_if_stale(read)


def touch_directory(directory: Path) -> bool:
    """Make a file there and remove it, so that this machine's next listing is not one that it has kept from before;
    whether it could.
    """
    path = directory / f".listed~{process_identity.unique()}"
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        path.unlink()
    except OSError:
        return False
    return True


def names_in(directory: Path) -> frozenset[str]:
    """The names in a directory, by one listing; none where it is not there."""
    return _none_if_gone(lambda: _names_in(directory))


def _names_in(directory: Path) -> frozenset[str]:
    return frozenset(path.name for path in directory.iterdir())


def _none_if_gone(names: Callable[[], frozenset[str]]) -> frozenset[str]:
    try:
        return again_if_stale(names)
    except (FileNotFoundError, NotADirectoryError, UnusableFileError, ownership.StrangersLinkError):
        return frozenset()


KEY_DIGITS = 24
_CACHES = frozenset(("__pycache__", ".mypy_cache", ".pytest_cache", ".ruff_cache"))  # directories


def key_of(*parts: str) -> str:
    """Hash of the parts in their order, 24 hex digits; ("ab", "c") and ("a", "bc") differ."""
    digest = hashlib.sha256()
    for part in parts:
        raw = part.encode("utf-8", "surrogateescape")
        digest.update(len(raw).to_bytes(8, "big") + raw)
    return digest.hexdigest()[:KEY_DIGITS]


def tree_hash(files: Iterable[tuple[str, Path]]) -> str:
    """Hash of names, permission to execute, and contents; the order given does not matter."""
    lines = []
    for name, path in files:
        mode = "x" if os.access(path, os.X_OK) else "-"
        lines.append(f"{name}\0{mode}\0{sha256(path)}")
    return key_of(*sorted(lines))


def files_below(root: Path) -> list[tuple[str, Path]]:
    """(name relative to ``root`` with ``/``, path) of every file, sorted; caches of Python's tools are left out."""
    files = ((path.relative_to(root), path) for path in root.rglob("*") if path.is_file())
    return sorted((name.as_posix(), path) for name, path in files if _CACHES.isdisjoint(name.parts))


def sha256(content: bytes | Path | BinaryIO) -> str:
    """SHA-256 of these bytes, of a file's, or of what is left to read of an open one, hex."""
    if isinstance(content, bytes):
        return hashlib.sha256(content).hexdigest()
    if isinstance(content, Path):
        with content.open("rb") as file:
            return sha256(file)
    digest = hashlib.sha256()
    while block := content.read(1 << 20):
        digest.update(block)
    return digest.hexdigest()


PRIVATE = 0o600


def temporary_name(path: Path) -> Path:
    """A hidden name beside ``path``, unique to this call; it ends in ``~MARK``, the mark of this process."""
    return path.with_name(f".{key_of(path.name)[:12]}~{process_identity.unique()}")


def temporary_owner(path: Path) -> str:
    """The mark of the process that writes under this temporary name; empty for any other file."""
    return path.name.rpartition("~")[2] if "~" in path.name else ""


@contextmanager
def replacement(path: Path) -> Iterator[Path]:
    """A temporary name to write a file under; it takes the name ``path`` when the block ends, and goes if it fails.
    Raises OSError: the disk is full, or the directory may not be written to; ``path`` is as it was.
    """
    temporary = temporary_name(path)
    try:
        yield temporary
        sync(temporary)
        temporary.replace(path)
    except OSError as error:  # where a disk is full, the system names no file
        error.filename = error.filename or str(path)
        raise
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
    sync_directory(path.parent)


def write(path: Path, content: bytes, *, mode: int | None = None) -> None:
    """Replace the content of a file; its directory exists. ``mode``: permissions; None leaves to the umask who may read
    it, and no other may write to it (a directory's default ACL comes in the umask's place, acl(5)). Raises OSError: as
    ``replacement``.
    """
    with replacement(path) as temporary:
        make(temporary, content, mode=mode)


def make(path: Path, content: bytes, *, mode: int | None = None) -> None:
    """Make a file that is not there yet; ``mode``: as ``write``. Raises OSError."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644 if mode is None else PRIVATE)
    with os.fdopen(handle, "wb") as file:
        if mode is not None:
            os.fchmod(handle, mode)
        file.write(content)


def sync(path: Path) -> None:
    """Force a file's content to disk. Raises OSError: as where that is full."""
    with path.open("rb") as file:
        os.fsync(file.fileno())


def make_closed(directory: Path) -> None:
    """Make a directory that only this user may enter, and so those above it that are missing, whatever the umask.
    Raises OSError.
    """
    try:
        directory.mkdir(mode=0o700)
    except FileNotFoundError:
        make_closed(directory.parent)
        directory.mkdir(mode=0o700, exist_ok=True)
    except OSError:
        if not directory.is_dir():
            raise


def write_private(path: Path, text: str) -> None:
    """Replace a text file that only its owner may read. Raises OSError as ``replacement``."""
    write(path, text.encode("utf-8", "surrogateescape"), mode=PRIVATE)


def sync_directory(path: Path) -> None:
    """Force the names in a directory to disk. Some network file systems cannot do it, and need not."""
    with suppress(OSError):  # a directory may be writable, and not readable
        handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


_OURS = 0o022  # bits that are always set
_kept: list[int] = []  # the user's, once ours is another
_GUARD, _inside, _dropped = threading.Lock(), list[bool](), dict[str, str]()


_OF_TEMPORARY = ("TMPDIR", "TEMP", "TMP", "APPTAINER_TMPDIR", "SINGULARITY_TMPDIR", "ENROOT_TEMP_PATH")


@contextmanager
def guarded() -> Iterator[None]:
    """In the block other users can write to nothing that this process makes, by the umask (``user_umask`` is the
    user's), and no program is started with a directory for temporary files that they could exchange. Of several
    threads, and of blocks within it, the last one to leave ends it: it is of the whole process.
    """
    with _GUARD:
        _inside.append(True)
        if len(_inside) == 1:
            _kept[:] = [user_umask()]
            os.umask(_kept[0] | _OURS)
            named = {name: os.environ[name] for name in _OF_TEMPORARY if os.environ.get(name)}
            _dropped.update(
                (name, os.environ.pop(name)) for name, at in named.items() if ownership.exchangeable_by(Path(at))
            )
    try:
        yield
    finally:
        with _GUARD:
            _inside.pop()
            if not _inside:
                os.environ.update(_dropped)
                _dropped.clear()
                os.umask(_kept.pop())


def user_umask() -> int:
    """The umask that this process was started with."""
    if _kept:
        return _kept[0]
    current = os.umask(0o077)
    os.umask(current)
    return current
