"""Names in the store: which image file a reference, digest or key stands for, one small file each and form."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path

from runner.files import atomic
from runner.files.hashes import key_of
from runner.images import reference as references
from runner.images.store.failures import unreadable, writing
from runner.images.store.stored_image import Form, StoredImage, form_of

DIRECTORY = "refs"
_FILE_NAME = re.compile(r"[A-Za-z0-9+_-][A-Za-z0-9.+_-]{0,254}")  # as ``file_name`` makes them


def normalized(text: str) -> str:
    """The name under which a reference is kept: a digest alone, whatever stands before it."""
    if re.fullmatch(r"sha256:[0-9a-f]{64}", text):
        return text
    reference = references.parse(text)
    return reference.digest or str(reference)


def path_of(name: str, store: Path, form: Form) -> Path:
    """The file that says what the name stands for in one form; not necessarily existing."""
    return store / DIRECTORY / (key_of(name) if form == "squashfs" else key_of(name, form))


def file_of(ref: Path) -> str:
    """The name of the image file that a reference file holds; empty where it is absent or holds no file name.

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
        raise unreadable(ref, error) from error
    return name if _FILE_NAME.fullmatch(name) else ""


def refer(name: str, image: StoredImage) -> None:
    """Let ``name`` (a reference, digest or key) stand for this image from now on."""
    content = image.path.name.encode() + b"\n"
    path = path_of(name, image.path.parent, form_of(image.path))
    with suppress(OSError):  # what cannot be read is written anew
        if path.read_bytes() == content:
            return
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        atomic.write(path, content)


def confirm(name: str, image: StoredImage) -> None:
    """Let ``name`` stand for this image from now on, as its source has just confirmed."""
    refer(name, image)
    with writing(image.path):
        os.utime(path_of(name, image.path.parent, form_of(image.path)))


def of_store(store: Path) -> dict[Path, str]:
    """Every reference file -> the name of the image file that it stands for; other files are ignored."""
    named = {path: file_of(path) for path in (store / DIRECTORY).glob("[!.]*")}
    return {path: name for path, name in named.items() if name}
