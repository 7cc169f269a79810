"""Sidecars: the small file beside each stored image that describes it.

A sidecar holds the image's whole environment. Whoever may read the image reads that in it anyway, so a sidecar has
its squashfs's permissions: what the umask gave at the conversion (``umask 077`` makes both private), and in a store
that others may write to, what these need to read it.
"""

from __future__ import annotations

import stat
from pathlib import Path

import msgspec

from runner.core import files
from runner.core.errors import InfrastructureError
from runner.images.store import owners
from runner.images.store.owners import unreadable, writing
from runner.images.store.stored_image import StoredImage

_SUFFIX = ".json"
_LARGEST = 1 << 26  # bytes; a manifest and its configuration have at most 8 MiB


def path_of(path: Path) -> Path:
    """The sidecar's path, from the image's."""
    return path.with_name(path.name + _SUFFIX)


def read(path: Path) -> StoredImage | None:
    """The image at ``path`` from its sidecar; the path is where it was found, so that a store may be moved."""
    sidecar = path_of(path)
    try:
        if not (sidecar.is_file() and path.is_file()):
            return None
        raw = files.read_bytes(sidecar, _LARGEST)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise unreadable(sidecar, error) from error
    try:
        image = msgspec.json.decode(raw, type=StoredImage, dec_hook=lambda kind, value: kind(value))
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise InfrastructureError(
            f"the sidecar of a stored image cannot be read: {error}",
            where=str(sidecar),
            fix="delete it with its image file and convert the image again",
        ) from error
    return msgspec.structs.replace(image, path=path)


def write(image: StoredImage, *, mode: int | None = None) -> None:
    """Write an image's sidecar anew. ``mode``: of the file; None keeps the image's.

    Raises:
        InfrastructureError: the disk is full, or it is another user's, who alone vouches for that image.
    """
    if not (owners.may_replace(path_of(image.path)) and owners.may_replace(image.path)):
        raise InfrastructureError("a stored image of another user is described by that user", where=str(image.path))
    content = msgspec.json.format(msgspec.json.encode(image, enc_hook=str), indent=1)
    path = path_of(image.path)
    with writing(path):
        files.write(path, content, mode=stat.S_IMODE(image.path.stat().st_mode) if mode is None else mode)
