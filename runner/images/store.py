"""The image store: squashfs files that every node can use, found in milliseconds with no engine.

    DIR/NAME-DIGEST-KEY.sqsh        the image; never changed once it has this name
    DIR/NAME-DIGEST-KEY.sqsh.json   its sidecar: what it is and where it comes from
    DIR/refs/HASH                   name of the file that a reference, digest or key stands for, one small file each;
                                    its time is when the name's source last said so

Writers lock on a miss only and publish by atomic renames; readers never lock. The directory is ``RUNNER_STORE``,
or ``images`` in the cache directory; on a cluster it must lie on a file system that all nodes see.

A sidecar holds the image's whole environment. Whoever may read the image reads that in it anyway, so a sidecar has
its squashfs's permissions: what the umask gave at the conversion (``umask 077`` makes both private).
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from runner import paths
from runner.errors import InfrastructureError, UsageError
from runner.images import reference as references
from runner.images.keys import key_of

_SIDECAR = ".json"


class StoredImage(msgspec.Struct, frozen=True, kw_only=True):
    """A squashfs and what is known about it.

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


def directory() -> Path:
    """The store's directory, absolute; not necessarily existing."""
    override = os.environ.get("RUNNER_STORE")
    return Path(override).expanduser().absolute() if override else paths.cache_dir() / "images"


def lookup(text: str, store: Path | None = None) -> StoredImage | None:
    """The stored image that a reference, a digest (``sha256:...``) or a path stands for; None where there is none.

    A squashfs that is not ours is taken by its path, with nothing known about it.

    Raises:
        UsageError: the text is no reference. InfrastructureError: a sidecar cannot be read.
    """
    if references.is_path(text):
        return _by_path(Path(text).expanduser().absolute(), text)
    return _by_name(_name(text), store or directory())


def confirm(name: str, image: StoredImage) -> None:
    """Let ``name`` stand for this image from now on, as its source has just said."""
    refer(name, image)
    os.utime(_ref(name, image.path.parent))


def confirmed_at(text: str, store: Path | None = None) -> float | None:
    """When a reference was last found to stand for its image, seconds since the epoch; None for a file or nothing."""
    if references.is_path(text):
        return None
    with suppress(FileNotFoundError, NotADirectoryError):
        return _ref(_name(text), store or directory()).stat().st_mtime
    return None


def by_key(key: str, store: Path) -> StoredImage | None:
    """The stored image of this conversion key."""
    return _by_name(key, store)


def publish(made: Path, image: StoredImage) -> StoredImage:
    """Give a verified squashfs its name, with sidecar and references; ``made`` lies in the same directory."""
    # The sidecar first: one without its image is passed over, an image without its sidecar would be a stranger.
    sidecar = msgspec.json.format(msgspec.json.encode(image, enc_hook=str), indent=1)
    _write(image.path.with_name(image.path.name + _SIDECAR), sidecar, mode=stat.S_IMODE(made.stat().st_mode))
    made.rename(image.path)
    for name in (image.key, image.digest, image.reference):
        refer(name, image)
    return image


def refer(name: str, image: StoredImage) -> None:
    """Let ``name`` (a reference, digest or key) stand for this image from now on."""
    _write(_ref(name, image.path.parent), image.path.name.encode() + b"\n")


def file_name(reference: str, digest: str, key: str) -> str:
    """``gpu-runner+horovod-pytorch+standin-0123456789ab-89abcdef.sqsh``: no character that a mount option splits at."""
    slug = re.sub(r"[^A-Za-z0-9._-]", "+", reference.split("@", 1)[0])
    return f"{slug}-{digest.removeprefix('sha256:')[:12]}-{key[:8]}.sqsh"


def _name(text: str) -> str:
    """The name under which a reference is kept: a digest says all, whatever stands before it."""
    if re.fullmatch(r"sha256:[0-9a-f]{64}", text):
        return text
    reference = references.parse(text)
    return reference.digest or str(reference)


def _ref(name: str, store: Path) -> Path:
    return store / "refs" / key_of(name)


def _by_name(name: str, store: Path) -> StoredImage | None:
    with suppress(FileNotFoundError, NotADirectoryError):
        return _read(store / _ref(name, store).read_text("utf-8").strip())
    return None


def _by_path(path: Path, text: str) -> StoredImage | None:
    if path.is_dir():
        raise UsageError(f"{text} is a directory, not an image file", where=text)
    if not path.is_file():
        return None
    known = _read(path)
    return known or StoredImage(path=path, reference=text, size_bytes=path.stat().st_size)


def _read(path: Path) -> StoredImage | None:
    """The image at ``path`` from its sidecar; the path is where it was found, so that a store may be moved."""
    sidecar = path.with_name(path.name + _SIDECAR)
    try:
        raw = sidecar.read_bytes()
    except FileNotFoundError:
        return None
    if not path.is_file():
        return None
    try:
        image = msgspec.json.decode(raw, type=StoredImage, dec_hook=lambda kind, value: kind(value))
    except msgspec.MsgspecError as error:
        raise InfrastructureError(
            f"the sidecar of a stored image cannot be read: {error}",
            where=str(sidecar),
            mend="delete it with its .sqsh file and convert the image again",
        ) from error
    return msgspec.structs.replace(image, path=path)


def _write(path: Path, content: bytes, *, mode: int | None = None) -> None:
    """Replace a small file at once: readers see the old content or the new. ``mode``: None leaves it to the umask."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with temporary.open("wb") as target:
        if mode is not None:
            os.fchmod(target.fileno(), mode)
        target.write(content)
        target.flush()
        os.fsync(target.fileno())
    temporary.rename(path)
