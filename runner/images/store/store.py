"""The image store: squashfs and SIF files that every node can use, found in milliseconds with no engine.

    DIR/NAME-DIGEST-SUM.sqsh        the image; a name stands for these bytes for ever (SUM: of its SHA-256)
    DIR/NAME-DIGEST-SUM.sqsh.json   its sidecar: what it is and where it comes from
    DIR/NAME-DIGEST-SUM.sif ...     the same for Apptainer and Singularity
    DIR/refs/HASH                   name of the file that a reference, digest or key stands for, one small file each
                                    and form; its time is when the name's source last confirmed it
    DIR/refs/HASH.UID               the same as that user has it, where HASH is another user's
    DIR/.KEY.claim  DIR/.*~MARK     the lock of a conversion; files that are being written, and by which process

Writers lock on a miss only and publish by atomic renames; readers never lock. The directory is ``RUNNER_STORE``,
or ``images`` in the cache directory; on a cluster it must lie on a file system that all nodes see.

Several users may share it. No file of another user is ever replaced, and what a digest or key stands for is believed
only of the caller, of root and of the store's owner (``owners``).
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path

import msgspec

from runner.core import files as atomic
from runner.core import paths, process_identity
from runner.core.errors import InfrastructureError, UsageError
from runner.images import reference as references
from runner.images.store import names, owners, sidecar
from runner.images.store.owners import unreadable, writing
from runner.images.store.stored_image import SUFFIXES, BrokenSidecar, Form, StoredImage


def directory() -> Path:
    """The store's directory, absolute; not necessarily existing."""
    override = os.environ.get("RUNNER_STORE")
    return paths.expanded(override) if override else paths.cache("images")


def lookup(text: str, store: Path | None = None, form: Form = "squashfs") -> StoredImage | None:
    """The stored image that a reference, a digest (``sha256:...``) or a path stands for; None where there is none.

    Any other file is accepted by its path, whatever its form, with nothing known about it.

    Raises:
        UsageError: the text is no reference. InfrastructureError: a sidecar cannot be read.
    """
    if references.is_path(text):
        return _by_path(paths.expanded(text), text)
    name = names.normalized(text)
    return _by_name(name, store or directory(), form, vouched=_is_digest(name))


def confirmed_at(text: str, store: Path | None = None, form: Form = "squashfs") -> float | None:
    """When a reference was last found to stand for its image, seconds since the epoch; None for a file or nothing."""
    if references.is_path(text):
        return None
    name = names.normalized(text)
    refs = names.existing(name, store or directory(), form, vouched=_is_digest(name))
    with suppress(FileNotFoundError, IndexError):
        return refs[0].stat().st_mtime
    return None


def by_key(key: str, store: Path, form: Form = "squashfs") -> StoredImage | None:
    """The stored image of this conversion key."""
    return _by_name(key, store, form, vouched=True)


def stranger(image: StoredImage) -> str:
    """The user who put an image into the store, where that is neither the caller, nor root, nor the store's owner."""
    store = image.path.parent
    return owners.stranger(image.path, store) or owners.stranger(sidecar.path_of(image.path), store)


def lease_path(key: str, store: Path) -> Path:
    """The lease on this key's conversion, for ``lease.leased``."""
    return store / f".{key}.claim"


def is_lease(path: Path, key: str, store: Path) -> bool:
    """Whether the path is the lease on a key's conversion, or one user's own (``lease.leased``)."""
    first = lease_path(key, store).name
    return path.name == first or (path.name.startswith(f"{first}.") and path.name[len(first) + 1 :].isdigit())


def partial_path(key: str, store: Path) -> Path:
    """The file in the making, named by this process; ``publish`` gives it its final name."""
    return store / f".{key}.partial~{process_identity.unique()}"


def sweep(key: str | None, store: Path) -> None:
    """Remove leftovers of killed conversions: all of this key, whose lease is held, and files of dead processes."""
    for path in (*store.glob(".*"), *(store / names.DIRECTORY).glob(".*")):
        of_key = key is not None and path.name.startswith(f".{key}.") and not is_lease(path, key, store)
        if of_key or process_identity.state(atomic.temporary_owner(path)) == "dead":
            with suppress(OSError):  # another user's, in a directory where only owners remove
                path.unlink(missing_ok=True)


def publish(made: Path, image: StoredImage) -> StoredImage:
    """Give a verified image file its name, with sidecar and references; ``made`` lies in the same directory.

    At every moment a reader finds the old state or the new, also after a power cut.

    Raises:
        InfrastructureError: the disk is full, or may not be written to.
    """
    # Where others may write, one of them could have put a link in its place.
    with writing(made), os.fdopen(os.open(made, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
        os.fsync(file.fileno())
        found = os.fstat(file.fileno())
    path = _own_path(image.path)
    image = msgspec.structs.replace(image, path=path, mtime_ns=found.st_mtime_ns)
    owners.share(made, path.parent)
    # The sidecar first: one without its image is ignored, and an image without its sidecar would be unknown.
    sidecar.write(image, mode=stat.S_IMODE(made.lstat().st_mode))
    owners.share(sidecar.path_of(path), path.parent)
    with writing(image.path):
        made.rename(image.path)
        atomic.sync_directory(image.path.parent)
    # The key last: by it a conversion finds its work done, all of it.
    for name in (image.reference, image.digest, image.key):
        names.refer(name, image)
    return image


def everything(store: Path) -> tuple[StoredImage | BrokenSidecar, ...]:
    """All images of the store by name, from their sidecars; none where there is no store yet.

    Raises:
        InfrastructureError: the store may not be read.
    """
    try:
        files = sorted(path for path in store.iterdir() if path.suffix in SUFFIXES.values())
    except FileNotFoundError:
        return ()
    except OSError as error:
        raise unreadable(store, error) from error
    found: list[StoredImage | BrokenSidecar] = []
    for path in files:
        try:
            known = sidecar.read(path)
        except InfrastructureError as error:
            found.append(BrokenSidecar(path, error.what))
            continue
        found.append(known or BrokenSidecar(path, "it has no sidecar"))
    return tuple(found)


def may_remove(path: Path) -> bool:
    """Whether the caller can remove an image: in a sticky directory only its owner can, or the directory's."""
    return owners.may_remove(path)


def remove(path: Path) -> None:
    """Remove an image: its names first, its sidecar last, so that no reader finds half of it.

    A removal that is cut off leaves a sidecar of a few kB, which is ignored, and never gigabytes without a name.

    Raises:
        InfrastructureError: this user may not; nothing is removed then.
    """
    if os.path.lexists(path) and not owners.may_remove(path):
        raise InfrastructureError(
            f"this image belongs to {owners.user(path.lstat().st_uid)}, who alone can remove it", where=str(path)
        )
    with writing(path):
        for ref, name in names.of_store(path.parent).items():
            if name == path.name and owners.may_remove(ref):  # another user's name for nothing is ignored
                ref.unlink(missing_ok=True)
        path.unlink(missing_ok=True)
        sidecar.path_of(path).unlink(missing_ok=True)


def _is_digest(name: str) -> bool:
    return name.startswith("sha256:")


def _by_name(name: str, store: Path, form: Form, *, vouched: bool) -> StoredImage | None:
    for ref in names.existing(name, store, form, vouched=vouched):
        file, written_for = names.read(ref)
        image = sidecar.read(store / file) if file else None
        if image is None:
            continue
        known = (written_for, image.digest, image.origin, image.key)
        if vouched and (stranger(image) or name not in known):
            continue  # any user can give this name to any file, but not in the name of those who are believed
        return image
    return None


def _own_path(path: Path) -> Path:
    """Where this user may publish: the path, or one beside it where another user has a file of that name."""
    if all(owners.may_replace(each) for each in (path, sidecar.path_of(path))):
        return path
    return path.with_name(f"{path.stem}-u{os.geteuid()}{path.suffix}")


def _by_path(path: Path, text: str) -> StoredImage | None:
    if path.is_dir():
        raise UsageError(f"{text} is a directory, not an image file", where=text)
    if not path.is_file():
        return None
    beside = sidecar.path_of(path)
    known = sidecar.read(path) if _vouches(beside, path) else None
    return known or StoredImage(path=path, reference=text, size_bytes=path.stat().st_size)


def _vouches(beside: Path, path: Path) -> bool:
    """Whether a sidecar is of someone who may speak for the file: its owner, or who is believed in its directory."""
    with suppress(OSError):
        return owners.believed(beside, path.parent) or {beside.lstat().st_uid, beside.stat().st_uid} == {
            path.stat().st_uid
        }
    return False
