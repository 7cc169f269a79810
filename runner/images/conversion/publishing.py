"""What can be converted: an image that is known, wherever its files lie."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import msgspec

from runner.core import paths
from runner.core.errors import InfrastructureError
from runner.core.files import sha256
from runner.core.lock import is_abandoned, leased
from runner.core.progress import Progress
from runner.images.packing.mksquashfs import Source
from runner.images.store import integrity, owners, store
from runner.images.store.stored_image import Edit, Form, StoredImage, file_name

ABOUT = "opt/runner/image.json"  # an image of ours describes itself in this file


@dataclass(frozen=True)
class Conversion:
    """The stored image; whether it was made now, and in how many seconds.

    moved_from: digest of the image that its name stood for until now; empty where it is the same or was not known.
    """

    image: StoredImage
    made: bool
    seconds: float
    moved_from: str = ""


@dataclass(frozen=True)
class Contents:
    """What is in a finished file. entries: files, directories and links. omitted: variables that /etc/environment
    cannot hold. sha256: of the file, hex; empty where it is not known yet. converter, key: of the file, where they are
    not the maker's.
    """

    entries: int
    about: Mapping[str, Any]
    omitted: tuple[str, ...] = ()
    sha256: str = ""
    converter: str = ""
    key: str = ""


@dataclass(frozen=True)
class Maker:
    """Makes the file of one image in one form.

    Attributes:
        source: the image. form: of the file. converter: its name and version. options: those that decide the bytes.
        keys: hashes of digest, converter and options under which an equal file may be kept; the first is published,
            unless what is made has its own.
        make: writes the file and verifies it. RefusedError: a program that it needs is absent, or the source refuses.
            InfrastructureError: source, program or disk failed, or the file is not what it has to be.
    """

    source: Source
    form: Form
    converter: str
    options: tuple[str, ...]
    keys: tuple[str, ...]
    make: Callable[[Path, Progress], Contents]


def publish(
    maker: Maker, progress: Progress, *, store_dir: Path | None = None, history: tuple[Edit, ...] = ()
) -> Conversion:
    """The stored image, made unless the store holds it; its names stand for it from now on. Nothing is left of a
    failure. ``history``: changes by hand that led to it.
    """
    started = time.monotonic()
    target = store_dir or store.directory()
    source, key = maker.source, maker.keys[0]
    moved_from = ""
    with suppress(InfrastructureError):  # an unreadable sidecar: of that image nothing is known
        before = store.lookup(source.name, target, maker.form)
        if before is not None and before.digest != source.digest:
            moved_from = before.origin or before.digest

    def conversion_of(image: StoredImage, *, made: bool) -> Conversion:
        """The image, after every name of the source was made to stand for it."""
        with suppress(InfrastructureError):  # a store that may only be read serves as well
            for name in (*source.names, source.name):
                store.confirm(name, image)
        return Conversion(image, made, time.monotonic() - started, moved_from)

    def kept() -> Conversion | None:
        image = next(filter(None, (_usable(each, target, maker.form) for each in maker.keys)), None)
        return None if image is None else conversion_of(image, made=False)

    lease = target / f".{key}.claim"
    if (done := kept()) is not None and not (os.access(target, os.W_OK) and is_abandoned(lease)):
        return done
    paths.ensure_directory(target)
    store.check_writable(target)
    if not owners.believed_users(target):
        progress.line("note: another user may exchange all of this image store; no digest is believed there")
    with leased(lease, progress.step, holders=owners.believed_users(target)):
        store.sweep(key, target)
        if (done := kept()) is not None:
            return done
        with store.partial(key, target) as partial:
            contents = maker.make(partial, progress)
            image = _described(maker, partial, target, contents, history)
            progress.step("publishing")
            image = store.publish(partial, image)
    return conversion_of(image, made=True)


def about_of(raw: bytes | str | None) -> dict[str, Any]:
    """What the content of ``ABOUT`` says; nothing where there is no such file, or one that is not ours."""
    with suppress(msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return msgspec.json.decode(raw or b"{}", type=dict[str, Any])
    return {}


def _described(maker: Maker, made: Path, target: Path, contents: Contents, history: tuple[Edit, ...]) -> StoredImage:
    """A finished and verified file as the store ``target`` is to know it."""
    source, config, checksum = maker.source, maker.source.config, contents.sha256 or sha256(made)
    return StoredImage(
        path=target / file_name(source.name, source.digest, checksum, maker.form),
        reference=source.name,
        digest=source.digest,
        origin=source.origin,
        size_bytes=made.stat().st_size,
        sha256=checksum,
        entries=contents.entries,
        environment=config.environment,
        workdir=config.workdir or "/",
        entrypoint=config.entrypoint,
        command=config.command,
        labels=config.labels,
        about=contents.about,
        architecture=source.architecture,
        key=contents.key or maker.keys[0],
        converter=contents.converter or maker.converter,
        options=maker.options,
        created=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        omitted=contents.omitted,
        history=history,
        layers=source.layers,
    )


def _usable(key: str, target: Path, form: Form) -> StoredImage | None:
    """The stored image of this key; None where there is none, or none that could be used."""
    if paths.caches_ignored():
        return None
    with suppress(InfrastructureError):  # an unreadable sidecar: the image is made anew
        image = store.by_key(key, target, form)
        return image if image is not None and not integrity.problem(image) else None
    return None
