"""Whether a stored image is whole: quickly by its head, or by all of its bytes."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import msgspec

from runner.core.errors import InfrastructureError
from runner.core.files import sha256
from runner.core.process import CommandFailedError
from runner.images.store import image_files, owners, stored_image
from runner.images.store.stored_image import StoredImage, form_of, sidecar_path

# Some file systems keep whole seconds, FAT two; a change in place leaves a later time than that.
_TIME_ROOM_NS = 2_000_000_000


def problem(image: StoredImage) -> str:
    """Why the image cannot be used, by its sidecar, size, time and head; empty if nothing speaks against it.

    A change that was followed by restoring the file's time is detected by ``verified`` only.
    """
    try:
        about = image.path.stat()
        if image.broken:
            return image.broken
        if why := _size_problem(image, about.st_size):
            return why
        if image.mtime_ns and abs(about.st_mtime_ns - image.mtime_ns) > _TIME_ROOM_NS:
            return "it was written to since it was made (or copied without its time)"
        return image_files.problem(image.path, form_of(image.path))
    except OSError as error:
        return f"it cannot be read: {error.strerror}"


def _size_problem(image: StoredImage, size: int) -> str:
    differs = image.sha256 and size != image.size_bytes
    return f"it is {size} bytes long, and was {image.size_bytes} when it was made" if differs else ""


def verified(image: StoredImage) -> StoredImage:
    """The image after a check of all its bytes against its checksum; ``broken`` says what is wrong with it. OSError: it
    cannot be read, which says nothing about its bytes.

    A file without a known checksum is listed to its end. The result is kept in the sidecar, so that ``submit``
    refuses a broken image and ``convert`` makes it anew; a read-only store stays unchanged. RefusedError: a stranger
    could exchange the whole store.
    """
    with owners.opened(image.path.parent) as store:
        return _verified(image, (store or image.path.parent) / image.path.name)


def _verified(image: StoredImage, file: Path) -> StoredImage:
    """``file``: the image's, by a handle of its store."""
    form = form_of(file)
    why = image_files.problem(file, form)
    if image.sha256 and not why:
        checksum = sha256(file)
        why = _size_problem(image, file.stat().st_size)
        if not why and checksum != image.sha256:
            why = f"its SHA-256 is {checksum[:12]}..., and was {image.sha256[:12]}... when it was made"
    elif not why:
        try:
            image_files.entries(file, form)
        except CommandFailedError as error:
            why = f"it cannot be listed: {error.done.last_lines(1).replace(str(file), str(image.path))}"
    mtime_ns = image.mtime_ns if why else file.stat().st_mtime_ns
    checked = msgspec.structs.replace(image, broken=why, mtime_ns=mtime_ns)
    if image.sha256 and checked != image and stored_image.is_described(msgspec.structs.replace(image, path=file)):
        with suppress(InfrastructureError):
            stored_image.write_sidecar(checked, at=sidecar_path(file))
    return checked
