"""The image store: squashfs and SIF files that every node can use, found in milliseconds with no engine.

    DIR/NAME-DIGEST-SUM.sqsh        the image; a name stands for these bytes for ever (SUM: of its SHA-256)
    DIR/NAME-DIGEST-SUM.sqsh.json   its sidecar: what it is and where it comes from
    DIR/NAME-DIGEST-SUM.sif ...     the same for Apptainer and Singularity
    DIR/refs/HASH                   name of the file that a reference, digest or key stands for, one small file each
                                    and form; its time is when the name's source last confirmed it
    DIR/.KEY.claim  DIR/.*~MARK     the lock of a conversion; files that are being written, and by which process

Writers lock on a miss only and publish by atomic renames; readers never lock. The directory is ``RUNNER_STORE``,
or ``images`` in the cache directory; on a cluster it must lie on a file system that all nodes see.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path

import msgspec

from runner import paths
from runner.errors import InfrastructureError, UsageError
from runner.files import atomic, process_identity
from runner.images import reference as references
from runner.images.store import names, sidecar
from runner.images.store.failures import unreadable, writing
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
    return _by_name(names.normalized(text), store or directory(), form)


def confirmed_at(text: str, store: Path | None = None, form: Form = "squashfs") -> float | None:
    """When a reference was last found to stand for its image, seconds since the epoch; None for a file or nothing."""
    if references.is_path(text):
        return None
    with suppress(FileNotFoundError, NotADirectoryError):
        return names.path_of(names.normalized(text), store or directory(), form).stat().st_mtime
    return None


def by_key(key: str, store: Path, form: Form = "squashfs") -> StoredImage | None:
    """The stored image of this conversion key."""
    return _by_name(key, store, form)


def lease_path(key: str, store: Path) -> Path:
    """The lease on this key's conversion, for ``lease.leased``."""
    return store / f".{key}.claim"


def partial_path(key: str, store: Path) -> Path:
    """The file in the making, named by this process; ``publish`` gives it its final name."""
    return store / f".{key}.partial~{process_identity.unique()}"


def sweep(key: str | None, store: Path) -> None:
    """Remove leftovers of killed conversions: all of this key, whose lease is held, and files of dead processes."""
    for path in (*store.glob(".*"), *(store / names.DIRECTORY).glob(".*")):
        of_key = key is not None and path.name.startswith(f".{key}.") and path != lease_path(key, store)
        if of_key or process_identity.state(atomic.owner(path)) == "dead":
            with suppress(OSError):  # another user's, in a directory where only owners remove
                path.unlink(missing_ok=True)


def publish(made: Path, image: StoredImage) -> StoredImage:
    """Give a verified image file its name, with sidecar and references; ``made`` lies in the same directory.

    At every moment a reader finds the old state or the new, also after a power cut.

    Raises:
        InfrastructureError: the disk is full, or may not be written to.
    """
    with writing(made), made.open("rb") as file:
        os.fsync(file.fileno())
        found = os.fstat(file.fileno())
    image = msgspec.structs.replace(image, mtime_ns=found.st_mtime_ns)
    # The sidecar first: one without its image is ignored, and an image without its sidecar would be unknown.
    sidecar.write(image, mode=stat.S_IMODE(found.st_mode))
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


def remove(path: Path) -> None:
    """Remove an image: its names first, its sidecar last, so that no reader finds half of it.

    A removal that is cut off leaves a sidecar of a few kB, which is ignored, and never gigabytes without a name.
    """
    with writing(path):
        for ref, name in names.of_store(path.parent).items():
            if name == path.name:
                ref.unlink(missing_ok=True)
        path.unlink(missing_ok=True)
        sidecar.path_of(path).unlink(missing_ok=True)


def _by_name(name: str, store: Path, form: Form) -> StoredImage | None:
    file = names.file_of(names.path_of(name, store, form))
    return sidecar.read(store / file) if file else None


def _by_path(path: Path, text: str) -> StoredImage | None:
    if path.is_dir():
        raise UsageError(f"{text} is a directory, not an image file", where=text)
    if not path.is_file():
        return None
    known = sidecar.read(path)
    return known or StoredImage(path=path, reference=text, size_bytes=path.stat().st_size)
