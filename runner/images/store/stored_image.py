"""A stored image: what is known of it, and its sidecar, the small file beside it that says so."""

from __future__ import annotations

import os
import re
import stat
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from runner.core import files
from runner.core.errors import InfrastructureError, UsageError
from runner.images.store import owners
from runner.images.store.owners import unreadable, writing

Form = Literal["squashfs", "sif"]
SUFFIXES: Mapping[Form, str] = {"squashfs": ".sqsh", "sif": ".sif"}
Count = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
_LARGEST = 1 << 26  # bytes of a sidecar; a manifest and its configuration have at most 8 MiB


class Edit(msgspec.Struct, frozen=True):
    """A change of an image by hand. of: digest of the image that was changed, or the hash of its file, ``sha256:...``.
    command: what ran in its writable copy, passwords hidden. tool: program and version. at: ISO 8601, UTC.
    """

    of: str
    command: tuple[str, ...]
    tool: str
    at: str


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
        broken: why a full check failed; empty where none did.
        history: changes by hand, the first one first; empty for an image as it was converted.
        layers: digests of the layers' archives, lowest first, where the file was made of these.
    """

    path: Path
    reference: str
    digest: str = ""
    origin: str = ""
    size_bytes: Count = 0
    sha256: str = ""
    entries: Count = 0
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
    history: tuple[Edit, ...] = ()
    layers: tuple[str, ...] = ()


@dataclass(frozen=True)
class BrokenSidecar:
    """An image file of the store whose sidecar is missing or unreadable, and why."""

    path: Path
    why: str


def form_of(path: Path) -> Form:
    """What a file of the store is, by its name."""
    return "sif" if path.suffix == SUFFIXES["sif"] else "squashfs"


def age_s(image: StoredImage) -> float:
    """Seconds since it was made, by this machine's clock; less than 0 where one of the clocks is wrong."""
    try:
        return time.time() - datetime.fromisoformat(image.created).timestamp()
    except ValueError:
        return 0.0


def file_name(reference: str, digest: str, sha256: str, form: Form = "squashfs") -> str:
    """``gpu-runner+horovod-pytorch+standin-0123456789ab-89abcdef.sqsh``: no character that a mount option splits at.

    It has the file's own checksum: whoever converts the same image to other bytes (another version of the tool) makes
    another file, and a sidecar never stands beside bytes that are not its own.
    """
    slug = re.sub(r"[^A-Za-z0-9._-]", "+", reference.split("@", 1)[0])[-120:]
    return f"{slug.lstrip('.')}-{digest.removeprefix('sha256:')[:12]}-{sha256[:8]}{SUFFIXES[form]}"


def sidecar_path(path: Path) -> Path:
    """The sidecar's path, from the image's."""
    return path.with_name(f"{path.name}.json")


def read_sidecar(path: Path) -> StoredImage | None:
    """The image at ``path`` from its sidecar; the path is where it was found, so that a store may be moved. Another
    user's link is no sidecar, wherever it leads.
    """
    sidecar = sidecar_path(path)
    try:
        if not (sidecar.is_file() and path.is_file()):
            return None
        raw = files.read_named(path.parent.resolve() / sidecar.name, _LARGEST)
    except (FileNotFoundError, UsageError):
        return None
    except OSError as error:
        raise unreadable(sidecar, error) from error
    try:
        image = _decoded(raw)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise InfrastructureError(
            f"the sidecar of a stored image cannot be read: {error}",
            where=str(sidecar),
            fix="delete it with its image file and convert the image again",
        ) from error
    return msgspec.structs.replace(image, path=path)


def is_described(image: StoredImage) -> bool:
    """Whether a sidecar of the caller says just this. It is opened once: where another user may rename, one of his may
    have lain there when the image was read.
    """
    with (
        suppress(OSError, msgspec.MsgspecError, ValueError, RecursionError),
        files.open_regular(sidecar_path(image.path)) as file,
    ):
        is_own = os.fstat(file.fileno()).st_uid == os.geteuid()
        return is_own and msgspec.structs.replace(_decoded(file.read(_LARGEST)), path=image.path) == image
    return False


def _decoded(raw: bytes) -> StoredImage:
    return msgspec.json.decode(raw, type=StoredImage, dec_hook=lambda kind, value: kind(value))


def write_sidecar(image: StoredImage, *, mode: int | None = None, at: Path | None = None) -> None:
    """Write an image's sidecar anew. ``mode``: of the file; None keeps the image's. ``at``: where, if not in its place.
    InfrastructureError: the disk is full, or it is another user's, who alone vouches for that image.
    """
    if not (owners.may_replace(sidecar_path(image.path)) and owners.may_replace(image.path)):
        raise InfrastructureError("a stored image of another user is described by that user", where=str(image.path))
    content = msgspec.json.format(msgspec.json.encode(image, enc_hook=str), indent=1)
    path = at or sidecar_path(image.path)
    with writing(path):
        files.write(path, content, mode=stat.S_IMODE(image.path.stat().st_mode) if mode is None else mode)
