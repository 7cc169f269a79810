"""The image store: squashfs and SIF files that every node can use, found in milliseconds with no engine.

    DIR/NAME-DIGEST-SUM.sqsh        the image; a name stands for these bytes for ever (SUM: of its SHA-256)
    DIR/NAME-DIGEST-SUM.sqsh.json   its sidecar: what it is and where it comes from
    DIR/NAME-DIGEST-SUM.sif ...     the same for Apptainer and Singularity
    DIR/refs/HASH                   name of the file that a reference, digest or key stands for, one small file each
                                    and form; its time is when the name's source last said so
    DIR/.KEY.claim  DIR/.*~MARK     the lock of a conversion; files that are being written, and by which process

Writers lock on a miss only and publish by atomic renames; readers never lock. The directory is ``RUNNER_STORE``,
or ``images`` in the cache directory; on a cluster it must lie on a file system that all nodes see.

A sidecar holds the image's whole environment. Whoever may read the image reads that in it anyway, so a sidecar has
its squashfs's permissions: what the umask gave at the conversion (``umask 077`` makes both private).
"""

from __future__ import annotations

import os
import re
import stat
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

import msgspec

from runner import paths
from runner.errors import InfrastructureError, UsageError
from runner.files import atomic, process_identity
from runner.files.hashes import key_of
from runner.images import reference as references

Form = Literal["squashfs", "sif"]
SUFFIXES: Mapping[Form, str] = {"squashfs": ".sqsh", "sif": ".sif"}
_SIDECAR = ".json"
_FILE_NAME = re.compile(r"[A-Za-z0-9+_-][A-Za-z0-9.+_-]{0,254}")  # as ``file_name`` makes them


class StoredImage(msgspec.Struct, frozen=True, kw_only=True):
    """A squashfs or SIF and what is known about it.

    Attributes:
        path: the file. size_bytes: its size. sha256: of the file, hex.
        reference: what it was converted from. digest: that image's id, ``sha256:...``; empty for a foreign file.
        origin: digest of the manifest by which registries know it; empty where it did not come from one.
        entries: files, directories and links in it.
        environment: variables that the image sets. workdir, entrypoint, command: as in its configuration.
        labels: of the image. about: its ``/opt/runner/image.json``; empty where it has none.
        architecture: of the image, as Go names it (``amd64``).
        key: hash of digest, converter and options. converter: name and version. options: of mksquashfs.
        created: when it was converted, ISO 8601, UTC.
        omitted: variables that /etc/environment cannot hold (a newline in the value).
        mtime_ns: the file's modification time when it was last known to be whole; 0 where unknown.
        broken: what a full check has found; empty where none has found anything.
    """

    path: Path
    reference: str
    digest: str = ""
    origin: str = ""
    size_bytes: int = 0
    sha256: str = ""
    entries: int = 0
    environment: Mapping[str, str] = msgspec.field(default_factory=dict)
    workdir: str = "/"
    entrypoint: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    labels: Mapping[str, str] = msgspec.field(default_factory=dict)
    about: Mapping[str, Any] = msgspec.field(default_factory=dict)
    architecture: str = ""
    key: str = ""
    converter: str = ""
    options: tuple[str, ...] = ()
    created: str = ""
    omitted: tuple[str, ...] = ()
    mtime_ns: int = 0
    broken: str = ""


@dataclass(frozen=True)
class BrokenSidecar:
    """A file in the store of which nothing is known, and why."""

    path: Path
    why: str


def directory() -> Path:
    """The store's directory, absolute; not necessarily existing."""
    override = os.environ.get("RUNNER_STORE")
    return paths.expanded(override) if override else paths.cache("images")


def lookup(text: str, store: Path | None = None, form: Form = "squashfs") -> StoredImage | None:
    """The stored image that a reference, a digest (``sha256:...``) or a path stands for; None where there is none.

    A file that is not ours is taken by its path, whatever its form, with nothing known about it.

    Raises:
        UsageError: the text is no reference. InfrastructureError: a sidecar cannot be read.
    """
    if references.is_path(text):
        return _by_path(paths.expanded(text), text)
    return _by_name(_name(text), store or directory(), form)


def confirm(name: str, image: StoredImage) -> None:
    """Let ``name`` stand for this image from now on, as its source has just said."""
    refer(name, image)
    with _writing(image.path):
        os.utime(_ref(name, image.path.parent, form_of(image.path)))


def confirmed_at(text: str, store: Path | None = None, form: Form = "squashfs") -> float | None:
    """When a reference was last found to stand for its image, seconds since the epoch; None for a file or nothing."""
    if references.is_path(text):
        return None
    with suppress(FileNotFoundError, NotADirectoryError):
        return _ref(_name(text), store or directory(), form).stat().st_mtime
    return None


def by_key(key: str, store: Path, form: Form = "squashfs") -> StoredImage | None:
    """The stored image of this conversion key."""
    return _by_name(key, store, form)


def form_of(path: Path) -> Form:
    """What a file of the store is, by its name."""
    return "sif" if path.suffix == SUFFIXES["sif"] else "squashfs"


def lease_path(key: str, store: Path) -> Path:
    """The lease on this key's conversion, for ``lease.leased``."""
    return store / f".{key}.claim"


def partial_path(key: str, store: Path) -> Path:
    """The file in the making, named by this process; ``publish`` gives it its final name."""
    return store / f".{key}.partial~{process_identity.unique()}"


def sweep(key: str | None, store: Path) -> None:
    """Remove what killed conversions left: all of this key, whose lock is held; of others what the dead wrote."""
    for path in (*store.glob(".*"), *(store / "refs").glob(".*")):
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
    with _writing(made), made.open("rb") as file:
        os.fsync(file.fileno())
        found = os.fstat(file.fileno())
    image = msgspec.structs.replace(image, mtime_ns=found.st_mtime_ns)
    # The sidecar first: one without its image is passed over, an image without its sidecar would be a stranger.
    record(image, mode=stat.S_IMODE(found.st_mode))
    with _writing(image.path):
        made.rename(image.path)
        atomic.sync_directory(image.path.parent)
    # The key last: by it a conversion finds its work done, all of it.
    for name in (image.reference, image.digest, image.key):
        refer(name, image)
    return image


def record(image: StoredImage, *, mode: int | None = None) -> None:
    """Write an image's sidecar anew. ``mode``: of the file; None keeps the image's."""
    content = msgspec.json.format(msgspec.json.encode(image, enc_hook=str), indent=1)
    _write(_sidecar(image.path), content, mode=stat.S_IMODE(image.path.stat().st_mode) if mode is None else mode)


def refer(name: str, image: StoredImage) -> None:
    """Let ``name`` (a reference, digest or key) stand for this image from now on."""
    content = image.path.name.encode() + b"\n"
    path = _ref(name, image.path.parent, form_of(image.path))
    with suppress(OSError):  # what cannot be read is written anew
        if path.read_bytes() == content:
            return
    _write(path, content)


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
        raise _unreadable(store, error) from error
    found: list[StoredImage | BrokenSidecar] = []
    for path in files:
        try:
            known = _read(path)
        except InfrastructureError as error:
            found.append(BrokenSidecar(path, error.what))
            continue
        found.append(known or BrokenSidecar(path, "it has no sidecar"))
    return tuple(found)


def age_s(image: StoredImage) -> float:
    """Seconds since it was made, by this machine's clock; less than 0 where one of the clocks is wrong."""
    try:
        return time.time() - datetime.fromisoformat(image.created).timestamp()
    except ValueError:
        return 0.0


def names_of(store: Path) -> dict[Path, str]:
    """Every reference file -> the name of the image file that it stands for; what is none is passed over."""
    named = {path: _named_in(path) for path in (store / "refs").glob("[!.]*")}
    return {path: name for path, name in named.items() if name}


def remove(path: Path) -> None:
    """Remove an image: what names it first, its sidecar last, so that no reader finds half of it.

    A removal that is cut off leaves a sidecar of a few kB, which is passed over, and no gigabytes that nobody knows.
    """
    with _writing(path):
        for ref, name in names_of(path.parent).items():
            if name == path.name:
                ref.unlink(missing_ok=True)
        path.unlink(missing_ok=True)
        _sidecar(path).unlink(missing_ok=True)


def file_name(reference: str, digest: str, sha256: str, form: Form = "squashfs") -> str:
    """``gpu-runner+horovod-pytorch+standin-0123456789ab-89abcdef.sqsh``: no character that a mount option splits at.

    The file's own checksum is in its name: whoever else converts the same image to other bytes (another version of
    the tool) makes another file, and a sidecar never stands beside bytes that are not its own.
    """
    slug = re.sub(r"[^A-Za-z0-9._-]", "+", reference.split("@", 1)[0])[-120:]
    return f"{slug.lstrip('.')}-{digest.removeprefix('sha256:')[:12]}-{sha256[:8]}{SUFFIXES[form]}"


def _sidecar(path: Path) -> Path:
    return path.with_name(path.name + _SIDECAR)


def _name(text: str) -> str:
    """The name under which a reference is kept: a digest says all, whatever stands before it."""
    if re.fullmatch(r"sha256:[0-9a-f]{64}", text):
        return text
    reference = references.parse(text)
    return reference.digest or str(reference)


def _ref(name: str, store: Path, form: Form) -> Path:
    return store / "refs" / (key_of(name) if form == "squashfs" else key_of(name, form))


def _by_name(name: str, store: Path, form: Form) -> StoredImage | None:
    file = _named_in(_ref(name, store, form))
    return _read(store / file) if file else None


def _named_in(ref: Path) -> str:
    """The file's name that a reference holds; empty where there is no such reference, or what it holds is no name.

    Raises:
        InfrastructureError: it may not be read.
    """
    try:
        if not ref.is_file():
            return ""
        name = ref.read_bytes().removesuffix(b"\n").decode("utf-8", "replace")
    except (FileNotFoundError, NotADirectoryError):
        return ""
    except OSError as error:
        raise _unreadable(ref, error) from error
    return name if _FILE_NAME.fullmatch(name) else ""


def _by_path(path: Path, text: str) -> StoredImage | None:
    if path.is_dir():
        raise UsageError(f"{text} is a directory, not an image file", where=text)
    if not path.is_file():
        return None
    known = _read(path)
    return known or StoredImage(path=path, reference=text, size_bytes=path.stat().st_size)


def _read(path: Path) -> StoredImage | None:
    """The image at ``path`` from its sidecar; the path is where it was found, so that a store may be moved."""
    sidecar = _sidecar(path)
    try:
        if not (sidecar.is_file() and path.is_file()):
            return None
        raw = sidecar.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _unreadable(sidecar, error) from error
    try:
        image = msgspec.json.decode(raw, type=StoredImage, dec_hook=lambda kind, value: kind(value))
    except msgspec.MsgspecError as error:
        raise InfrastructureError(
            f"the sidecar of a stored image cannot be read: {error}",
            where=str(sidecar),
            fix="delete it with its image file and convert the image again",
        ) from error
    return msgspec.structs.replace(image, path=path)


def _unreadable(path: Path, error: OSError) -> InfrastructureError:
    return InfrastructureError(
        f"a file of the image store cannot be read: {error.strerror}",
        where=str(path),
        fix="ask its owner for permission, or convert the image into a store of your own (--store DIR)",
    )


def _write(path: Path, content: bytes, *, mode: int | None = None) -> None:
    """Replace a small file at once: readers see the old content or the new. ``mode``: None leaves it to the umask."""
    with _writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        atomic.write(path, content, mode=mode)


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise InfrastructureError(
            f"cannot write to the image store: {error.strerror}",
            where=str(path),
            fix="free space, or name a store that you may write to (--store DIR or RUNNER_STORE)",
        ) from error
