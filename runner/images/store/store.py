"""The image store: squashfs and SIF files that every node can use, found in milliseconds with no engine.

    DIR/NAME-DIGEST-SUM.sqsh        the image; a name stands for these bytes for ever (SUM: of its SHA-256)
    DIR/NAME-DIGEST-SUM.sqsh.json   its sidecar: what it is and where it comes from
    DIR/NAME-DIGEST-SUM.sif ...     the same for Apptainer and Singularity
    DIR/refs/HASH                   name and SHA-256 of the file that a reference, digest or key stands for, one small
                                    file each and form; its time is when the name's source last confirmed it
    DIR/refs/HASH.UID               the same as that user has it, where HASH is another user's
    DIR/refs.UID/HASH               the same where others may write to DIR, and refs is a stranger's
    DIR/.KEY.claim  DIR/.*~MARK     the lock of a conversion; what is being written, and by which process

Writers lock on a miss only and publish by atomic renames; readers never lock. The directory is ``RUNNER_STORE``,
or ``images`` in the cache directory; on a cluster it must lie on a file system that all nodes see.

Several users may share it. No file of another user is ever replaced, and what a digest or key stands for is believed
only of the caller, of root and of the store's owner (``owners``).
"""

from __future__ import annotations

import os
import re
import shutil
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec

from runner.core import files, ownership, paths, process_identity
from runner.core.errors import InfrastructureError, RunnerError, UsageError
from runner.core.files import key_of
from runner.images import reference as references
from runner.images.store import owners
from runner.images.store.owners import unreadable, writing
from runner.images.store.stored_image import (
    SUFFIXES,
    BrokenSidecar,
    Form,
    StoredImage,
    form_of,
    read_sidecar,
    sidecar_path,
    write_sidecar,
)

_NAMES = "refs"
_IN_THE_MAKING = "image"
_LARGEST = 1 << 16  # bytes of a reference file; a stranger's may be a hole of terabytes
_FILE_NAME = re.compile(r"[A-Za-z0-9+_-][A-Za-z0-9.+_-]{0,254}")  # as ``file_name`` makes them


def directory() -> Path:
    """The store's directory, absolute; not necessarily existing. Raises UsageError: as ``paths.whole``."""
    override = paths.whole("RUNNER_STORE")
    return Path(override) if override else paths.cache("images")


def lookup(text: str, store: Path | None = None, form: Form = "squashfs") -> StoredImage | None:
    """The stored image that a reference, a digest (``sha256:...``) or a path stands for; None where there is none. Any
    other file is accepted by its path, whatever its form, with nothing known about it.
    """
    return lookup_and_stranger(text, store, form)[0]


def lookup_and_stranger(
    text: str, store: Path | None = None, form: Form = "squashfs"
) -> tuple[StoredImage | None, str]:
    """The same, and the user who put the image or its name into the store, where that is a ``stranger``."""
    if not references.is_path(text):
        name = _normalized(text)
        return _by_name(name, store or directory(), form, vouched=name.startswith("sha256:"))
    path = paths.expanded(text)
    if path.is_dir():
        raise UsageError(f"{text} is a directory, not an image file", where=text)
    if not path.is_file():
        return None, ""
    known = read_sidecar(path) if _vouches(sidecar_path(path), path) else None
    image = known or StoredImage(path=path, reference=text, size_bytes=path.stat().st_size)
    return image, stranger(image)


def confirmed_at(text: str, store: Path | None = None, form: Form = "squashfs") -> float | None:
    """When a reference was last found to stand for its image, seconds since the epoch; None for a file or nothing."""
    if references.is_path(text):
        return None
    name = _normalized(text)
    refs = _existing_names(name, store or directory(), form, vouched=name.startswith("sha256:"))
    with suppress(FileNotFoundError, IndexError):
        return refs[0][0].stat().st_mtime
    return None


def by_key(key: str, store: Path, form: Form = "squashfs") -> StoredImage | None:
    """The stored image of this conversion key."""
    return _by_name(key, store, form, vouched=True)[0]


def stranger(image: StoredImage) -> str:
    """The user who put an image into the store, where that is neither the caller, nor root, nor the store's owner. It
    may be anybody's that is not there now, or whose sidecar is not that was read.
    """
    store, gone = image.path.parent, "another user"
    was_read = bool(image.digest or image.sha256 or image.key)
    return owners.stranger(image.path, store, gone=gone) or owners.stranger(
        sidecar_path(image.path), store, gone=gone * was_read
    )


@contextmanager
def partial(key: str, store: Path) -> Iterator[Path]:
    """The file in the making, in a directory of this process that no other user can enter: one could exchange it, or
    have a program write elsewhere through a link. ``publish`` gives it its final name. Nothing is left of it. Where
    others may rename the directory, the path leads to it by this process's handle, whatever has its name by then.
    """
    own = store / f".{key}.partial~{process_identity.unique()}"
    with writing(own):
        own.mkdir(mode=0o700)
        handle = os.open(own, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    at = own if ownership.closed_to_others(own) else Path(f"/proc/{os.getpid()}/fd/{handle}")
    try:
        about = os.fstat(handle)
        if about.st_uid != os.geteuid() or about.st_mode & 0o077 or any(at.iterdir()):
            raise InfrastructureError("another user has put a directory in the place of ours", where=str(own))
        try:
            yield at / _IN_THE_MAKING
        finally:
            with suppress(OSError):
                for each in at.iterdir():
                    shutil.rmtree(each, ignore_errors=True)
                    each.unlink(missing_ok=True)
                own.rmdir()  # what has its name by now may be another of this user's, and is left
    except RunnerError as error:
        error.where = error.where.replace(str(at), str(own))
        raise
    finally:
        os.close(handle)


def sweep(key: str | None, store: Path) -> None:
    """Remove what dead conversions of this user left, and of this key, whose lease is held, those of other machines.
    What another user puts or renames to there may be what this one has elsewhere: no other may enter what is ours, and
    only what ``partial`` makes is removed from it.
    """
    # The lease on the key, or one user's own (``lease.leased``).
    lease = re.compile(re.escape(f".{key}.claim") + r"(\.[0-9]+)?")
    for path in (*store.glob(".*"), *(path for each in _kept_directories(store) for path in each.glob(".*"))):
        of_key = key is not None and path.name.startswith(f".{key}.") and not lease.fullmatch(path.name)
        state = process_identity.state(files.temporary_owner(path))
        if state == "dead" or (of_key and state == "elsewhere"):
            with suppress(OSError):  # in a directory where only others remove
                about = path.lstat()
                if about.st_uid != os.geteuid() or (stat.S_ISDIR(about.st_mode) and about.st_mode & 0o077):
                    continue
                if stat.S_ISDIR(about.st_mode):
                    _remove_partial(path)
                else:
                    path.unlink(missing_ok=True)


def _remove_partial(directory: Path) -> None:
    """Remove what a process left that ended in ``partial``. Raises OSError: something else is there, too."""
    mark = files.temporary_owner(directory).rpartition(".")[0]
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        for each in Path(f"/proc/self/fd/{handle}").iterdir():
            if each.name == _IN_THE_MAKING or (mark and mark in each.name):
                each.rmdir() if each.is_dir() and not each.is_symlink() else each.unlink()
    finally:
        os.close(handle)
    directory.rmdir()


def publish(made: Path, image: StoredImage) -> StoredImage:
    """Give a verified image file its name, with sidecar and references; ``made`` is on the same file system.

    At every moment a reader finds the old state or the new, also after a power cut.
    """
    # Where others may write, one of them could have put a link in its place.
    with writing(made), os.fdopen(os.open(made, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
        os.fsync(file.fileno())
        about = os.fstat(file.fileno())
    path = image.path
    # Beside other users' files of that name, and of the next: the last cannot be known before.
    for end in (f"-u{os.geteuid()}", f"-{os.urandom(4).hex()}"):
        if not all(map(owners.may_replace, (path, sidecar_path(path)))):
            path = path.with_name(f"{path.stem}{end}{path.suffix}")
    image = msgspec.structs.replace(image, path=path, mtime_ns=about.st_mtime_ns)
    owners.share(made, path.parent)
    # The sidecar first: one without its image is ignored, and an image without its sidecar would be unknown.
    with _new(sidecar_path(path), path.parent) as new:
        write_sidecar(image, mode=stat.S_IMODE(made.lstat().st_mode), at=new)
    with writing(path):
        made.rename(path)
        files.sync_directory(path.parent)
    # The key last: by it a conversion finds its work done, all of it.
    for name in (image.reference, image.digest, image.key):
        refer(name, image)
    return image


def everything(store: Path) -> tuple[StoredImage | BrokenSidecar, ...]:
    """All images of the store by name, from their sidecars; none where there is no store yet."""
    try:
        candidates = sorted(path for path in store.iterdir() if path.suffix in SUFFIXES.values())
    except FileNotFoundError:
        return ()
    except OSError as error:
        raise unreadable(store, error) from error
    images: list[StoredImage | BrokenSidecar] = []
    for path in candidates:
        try:
            images.append(read_sidecar(path) or BrokenSidecar(path, "it has no sidecar"))
        except InfrastructureError as error:
            images.append(BrokenSidecar(path, error.what))
    return tuple(images)


def remove(path: Path) -> None:
    """Remove an image: its names first, its sidecar last, so that no reader finds half of it. InfrastructureError: this
    user may not; nothing is removed then.

    A removal that is cut off leaves a sidecar of a few kB, which is ignored, and never gigabytes without a name.
    """
    if os.path.lexists(path) and not owners.may_remove(path):
        raise InfrastructureError(
            f"this image belongs to {owners.user(path.lstat().st_uid)}, who alone can remove it", where=str(path)
        )
    with writing(path):
        for ref, name in names_of_store(path.parent).items():
            if name == path.name and owners.may_remove(ref):  # another user's name for nothing is ignored
                ref.unlink(missing_ok=True)
        path.unlink(missing_ok=True)
        sidecar_path(path).unlink(missing_ok=True)


def _by_name(name: str, store: Path, form: Form, *, vouched: bool) -> tuple[StoredImage | None, str]:
    for ref, whose in _existing_names(name, store, form, vouched=vouched):
        try:
            file, written_for, checksum = _read_name(ref)
            image = read_sidecar(store / file) if file else None
        except InfrastructureError:
            if not whose:
                raise
            continue  # a stranger's that is closed, or no sidecar
        # A stranger may bring both from a store of theirs, where this user made them for other images.
        if image is None or checksum not in ("", image.sha256) or (written_for not in ("", name) and not vouched):
            continue
        known = (image.digest, image.origin, image.key, *([written_for] if checksum else ()))
        if vouched and (stranger(image) or name not in known):
            continue  # any user can give this name to any file, but not in the name of those who are believed
        return image, stranger(image) or whose
    return None, ""


def _vouches(beside: Path, path: Path) -> bool:
    """Whether a sidecar is of someone who may speak for the file: its owner, or who is believed in its directory; of
    this user's own file, this user or root.
    """
    with suppress(OSError):
        writers, owner = {beside.lstat().st_uid, beside.stat().st_uid}, path.stat().st_uid
        is_believed = owners.believed(beside, path.parent) and (owner != os.geteuid() or writers <= {0, owner})
        return is_believed or writers == {owner}
    return False


def _normalized(text: str) -> str:
    """The name under which a reference is kept: a digest alone, whatever stands before it."""
    if re.fullmatch(r"sha256:[0-9a-f]{64}", text):
        return text
    reference = references.parse(text)
    return reference.digest or str(reference)


def _file_of_name(name: str, form: Form) -> str:
    """Of the file that says what it stands for; another user's stays, and ``HASH.UID`` beside it is this user's."""
    return key_of(name) if form == "squashfs" else key_of(name, form)


def _directory_of_names(store: Path) -> Path:
    """Where this user's names are. A directory's owner can exchange what others have in it, sticky or not: a stranger
    could give a name back to the image that it stood for before.
    """
    shared, own = store / _NAMES, store / f"{_NAMES}.{os.geteuid()}"
    if not os.path.lexists(shared) or _is_kept(shared, store):
        return shared
    free = (each for each in sorted(store.glob(f"{own.name}*")) if owners.is_own(each) and not each.is_symlink())
    return next(free, own if not os.path.lexists(own) else own.with_name(f"{own.name}-{os.urandom(4).hex()}"))


def _directories_of_names(store: Path) -> tuple[Path, ...]:
    owners.check_sticky(store)
    shared = store / _NAMES
    are_apart = owners.others_write(store) or not _is_kept(shared, store)
    return (shared, *(store.glob(f"{_NAMES}.*") if are_apart else ()))


def _kept_directories(store: Path) -> Iterator[Path]:
    """Those where names may be removed: a stranger's could become a link to this user's files of the same names."""
    return (each for each in _directories_of_names(store) if _is_kept(each, store))


def _is_kept(names: Path, store: Path) -> bool:
    """Whether no stranger can exchange names in this directory, or lead them elsewhere."""
    # None is believed whose id is unknown, not even this user's.
    is_ours = owners.is_own(names) or owners.believed(names, store)
    is_closed = not owners.others_write(store) and not owners.left_by_stranger(names, store)
    return (is_ours and not names.is_symlink()) or is_closed


def _existing_names(name: str, store: Path, form: Form, *, vouched: bool) -> tuple[tuple[Path, str], ...]:
    """The files that say what the name stands for, each with the user who says so where that is a stranger: those of
    believed owners first, of these the last confirmed. ``vouched``: only those of believed owners (``owners``).
    """
    key, refs = _file_of_name(name, form), []
    for names in _directories_of_names(store):
        kept = _is_kept(names, store)
        for path in (names / key, *names.glob(f"{key}.*")):
            with suppress(OSError):
                about, believed = path.lstat(), owners.believed(path, store)
                whose = "" if kept and believed else owners.user((names.lstat() if believed else about).st_uid)
                refs.append((not whose, about.st_mtime, path, whose))
    return tuple((path, whose) for believed, _, path, whose in sorted(refs, reverse=True) if believed or not vouched)


def _read_name(ref: Path) -> tuple[str, str, str]:
    """The name of the image file that a reference file holds, the name for which, and the image's SHA-256 (both empty
    in files of earlier versions); all empty where it holds none.
    """
    try:
        raw = files.read_bytes(ref, _LARGEST)
        file, name, checksum, *_ = [*raw.decode("utf-8", "replace").split("\n"), "", ""]
    except (FileNotFoundError, NotADirectoryError, files.UnusableFileError):
        return "", "", ""
    except OSError as error:
        raise unreadable(ref, error) from error
    return (file, name, checksum) if _FILE_NAME.fullmatch(file) else ("", "", "")


def refer(name: str, image: StoredImage) -> Path:
    """Let ``name`` (a reference, digest or key) stand for this image from now on; returns the file that says so."""
    content = f"{image.path.name}\n{name}\n{image.sha256}\n".encode()
    store = image.path.parent
    # The file for all, unless it is another user's.
    shared = _made_directory_of_names(store) / _file_of_name(name, form_of(image.path))
    own = shared.with_name(f"{shared.name}.{os.geteuid()}")
    own = next(filter(owners.is_own, sorted(shared.parent.glob(f"{own.name}*"))), own)
    if not owners.may_replace(own):  # a stranger has taken this name, too
        own = own.with_name(f"{own.name}-{os.urandom(4).hex()}")
    path = own if own.exists() or not owners.may_replace(shared) else shared
    with suppress(OSError):  # what cannot be read is written anew
        if files.read_bytes(path, _LARGEST) == content:
            return path
    with _new(path, store) as new:
        files.write(new, content)
    # As long as ours was empty, that of another member could take its place.
    return path if _directory_of_names(store) == path.parent else refer(name, image)


def _made_directory_of_names(store: Path) -> Path:
    """As ``_directory_of_names``, and it is there: who makes one at the same time may be a stranger."""
    while not (_is_kept(names := _directory_of_names(store), store) and os.path.lexists(names)):
        try:
            with _new(names, store) as new:
                new.mkdir()
        except InfrastructureError:
            if not os.path.lexists(names):
                raise
    return names


@contextmanager
def _new(path: Path, store: Path) -> Iterator[Path]:
    """What is to be shared under this name, made and shared where no other user could exchange it: another file or
    directory of this user's would be opened to others in its place.
    """
    with partial(_NAMES, store) as new, writing(path):
        yield new
        owners.share(new, store)
        new.rename(path)
        files.sync_directory(path.parent)


def confirm(name: str, image: StoredImage) -> None:
    """Let ``name`` stand for this image from now on, as its source has just confirmed."""
    path = refer(name, image)
    with writing(image.path):
        os.utime(path)


def check_writable(store: Path) -> None:
    """That names can be written, and no stranger could exchange the store, before hours are spent on an image. The
    error says whose the directory is.
    """
    owners.believed(store, store)
    for path in (store, _directory_of_names(store)):
        with suppress(FileNotFoundError):
            mode, owner = path.stat().st_mode, owners.user(path.stat().st_uid)
            share = f"ask {owner} for `chmod g+rwxs {store} {store / _NAMES}` and membership in its group"
            if not os.access(path, os.W_OK | os.X_OK):
                raise InfrastructureError(
                    f"you may not write to this image store: its directory belongs to {owner}"
                    f" (mode {stat.S_IMODE(mode):o})",
                    where=str(path),
                    fix=(f"chmod u+rwx {path}" if path.stat().st_uid == os.geteuid() else share)
                    + ", or name a store that you may write to (--store DIR or RUNNER_STORE)",
                )


def names_of_store(store: Path) -> dict[Path, str]:
    """Every reference file that no stranger can exchange -> the name of the image file that it stands for; other files
    are ignored.
    """
    named = {}
    for path in (path for each in _kept_directories(store) for path in each.glob("[!.]*")):
        with suppress(InfrastructureError):  # another user's private one
            named[path] = _read_name(path)[0]
    return {path: name for path, name in named.items() if name}


@dataclass(frozen=True)
class Candidate:
    """A stored image as pruning sees it. age_s: seconds since it was made; less than 0 where a clock was wrong. idle_s:
    since a run last began with it. used: by a known run. needed: by one that has not ended, or whose state is unknown.
    """

    path: Path
    size_bytes: int
    age_s: float
    idle_s: float
    used: bool
    needed: bool


@dataclass(frozen=True)
class Limits:
    """Which images the user wants removed; all limits that are given must hold. max_bytes: the longest idle are removed
    until the rest has at most this size; None: all that the others allow.
    """

    older_than_s: float | None = None
    unused: bool = False
    max_bytes: int | None = None


def to_remove(images: Sequence[Candidate], limits: Limits) -> tuple[Candidate, ...]:
    """The images to remove, the longest idle first; never one that is needed."""
    allowed = [
        image
        for image in images
        if not image.needed
        and (limits.older_than_s is None or image.age_s > limits.older_than_s)
        and not (limits.unused and image.used)
    ]
    allowed.sort(key=lambda image: (-image.idle_s, image.path))
    if limits.max_bytes is None:
        return tuple(allowed)
    total = sum(image.size_bytes for image in images)
    removed: list[Candidate] = []
    for image in allowed:
        if total <= limits.max_bytes:
            break
        removed.append(image)
        total -= image.size_bytes
    return tuple(removed)
