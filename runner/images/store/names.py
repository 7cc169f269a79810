"""Names in the store: which image file a reference, digest or key stands for, one small file each and form."""

from __future__ import annotations

import os
import re
import stat
from contextlib import suppress
from pathlib import Path

from runner.core import files
from runner.core.errors import InfrastructureError
from runner.core.files import key_of
from runner.images import reference as references
from runner.images.store import owners
from runner.images.store.owners import unreadable, writing
from runner.images.store.stored_image import Form, StoredImage, form_of

DIRECTORY = "refs"
_LARGEST = 1 << 16  # bytes of a reference file; a stranger's may be a hole of terabytes
_FILE_NAME = re.compile(r"[A-Za-z0-9+_-][A-Za-z0-9.+_-]{0,254}")  # as ``file_name`` makes them


def normalized(text: str) -> str:
    """The name under which a reference is kept: a digest alone, whatever stands before it."""
    if re.fullmatch(r"sha256:[0-9a-f]{64}", text):
        return text
    reference = references.parse(text)
    return reference.digest or str(reference)


def path_of(name: str, store: Path, form: Form) -> Path:
    """The file that says what the name stands for in one form; not necessarily existing.

    Another user's is never replaced: beside it, ``HASH.UID`` says what the name stands for in this user's view.
    """
    return store / DIRECTORY / (key_of(name) if form == "squashfs" else key_of(name, form))


def existing(name: str, store: Path, form: Form, *, vouched: bool) -> tuple[Path, ...]:
    """The files that say what the name stands for: those of believed owners first, of these the last confirmed.

    Args:
        vouched: only those of believed owners (``owners``).
    """
    shared = path_of(name, store, form)
    found = []
    for path in (shared, *shared.parent.glob(f"{shared.name}.*")):
        with suppress(OSError):
            found.append((owners.believed(path, store), path.lstat().st_mtime, path))
    return tuple(path for believed, _, path in sorted(found, reverse=True) if believed or not vouched)


def read(ref: Path) -> tuple[str, str]:
    """The name of the image file that a reference file holds, and the name for which; both empty where it holds none.

    The second is empty in files of earlier versions.

    Raises:
        InfrastructureError: it may not be read.
    """
    try:
        raw = files.read_bytes(ref, _LARGEST)
        file, _, name = raw.removesuffix(b"\n").decode("utf-8", "replace").partition("\n")
    except (FileNotFoundError, NotADirectoryError, files.UnusableFileError):
        return "", ""
    except OSError as error:
        raise unreadable(ref, error) from error
    return (file, name) if _FILE_NAME.fullmatch(file) else ("", "")


def refer(name: str, image: StoredImage) -> Path:
    """Let ``name`` (a reference, digest or key) stand for this image from now on; returns the file that says so."""
    content = f"{image.path.name}\n{name}\n".encode()
    store = image.path.parent
    path = _writable(path_of(name, store, form_of(image.path)))
    with suppress(OSError):  # what cannot be read is written anew
        if path.read_bytes() == content:
            return path
    with writing(path):
        _ensure(path.parent, store)
        files.write(path, content)
        owners.share(path, store)
    return path


def confirm(name: str, image: StoredImage) -> None:
    """Let ``name`` stand for this image from now on, as its source has just confirmed."""
    path = refer(name, image)
    with writing(image.path):
        os.utime(path)


def check_writable(store: Path) -> None:
    """That names can be written, before hours are spent on an image.

    Raises:
        InfrastructureError: this user may not; says whose the directory is.
    """
    directory = store / DIRECTORY
    for path in (store, directory):
        with suppress(FileNotFoundError):
            mode, owner = path.stat().st_mode, owners.user(path.stat().st_uid)
            share = f"ask {owner} for `chmod g+rwxs {store} {directory}` and membership in its group"
            if not os.access(path, os.W_OK | os.X_OK):
                raise InfrastructureError(
                    f"you may not write to this image store: its directory belongs to {owner}"
                    f" (mode {stat.S_IMODE(mode):o})",
                    where=str(path),
                    fix=(f"chmod u+rwx {path}" if path.stat().st_uid == os.geteuid() else share)
                    + ", or name a store that you may write to (--store DIR or RUNNER_STORE)",
                )


def of_store(store: Path) -> dict[Path, str]:
    """Every reference file -> the name of the image file that it stands for; other files are ignored."""
    named = {}
    for path in (store / DIRECTORY).glob("[!.]*"):
        with suppress(InfrastructureError):  # another user's private one
            named[path] = read(path)[0]
    return {path: name for path, name in named.items() if name}


def _writable(shared: Path) -> Path:
    """The file in which this user says what a name stands for: the one for all, unless it is another user's."""
    own = shared.with_name(f"{shared.name}.{os.geteuid()}")
    return own if own.exists() or not owners.may_replace(shared) else shared


def _ensure(directory: Path, store: Path) -> None:
    try:
        directory.mkdir(parents=True)
    except FileExistsError:
        return
    owners.share(directory, store)
