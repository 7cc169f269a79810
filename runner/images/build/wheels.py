"""Horovod's wheels, kept by key for whoever builds next: offered to a build, and taken out of one.

A wheel is a zip archive, whose checksums are compared before it is taken: one that is damaged is removed, and Horovod
is compiled again.
"""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from runner import paths
from runner.files import atomic

SHIPPED = "shipped"  # the key of a Horovod that is the base's own (containers/horovod/build.py)


def find(key: str, say: Callable[[str], None]) -> Path | None:
    """The whole wheel kept under this key; None where there is none, or caches are to be ignored."""
    candidates = [] if paths.caches_ignored() else sorted((paths.cache("wheels") / key).glob("*.whl"))
    return next((path for path in candidates if _is_whole(path, say)), None)


def offered(say: Callable[[str], None]) -> tuple[tuple[str, Path], ...]:
    """Every kept wheel, under the name in the context where ``build.py`` looks for the one that fits."""
    shelf = paths.cache("wheels")
    candidates = [] if paths.caches_ignored() else sorted(shelf.glob("*/*.whl"))
    found = [path for path in candidates if _is_whole(path, say)]
    return tuple((f"containers/horovod/wheels/{path.parent.name}/{path.name}", path) for path in found)


def keep(key: str, name: str, content: bytes) -> Path:
    """Keep a wheel; it is on disk when this returns."""
    path = paths.ensure_directory(paths.cache("wheels") / key) / name
    atomic.write(path, content)
    return path


def keep_built(directory: Path) -> None:
    """Keep the wheel that ``build.py`` left in ``directory`` with its key; nothing where the base's own was taken."""
    key = (directory / "key").read_text("utf-8").strip()
    for wheel in directory.glob("*.whl"):
        if key != SHIPPED and not (paths.cache("wheels") / key / wheel.name).exists():
            keep(key, wheel.name, wheel.read_bytes())


def _is_whole(path: Path, say: Callable[[str], None]) -> bool:
    """Whether its checksums are right; it is removed if not."""
    try:
        with zipfile.ZipFile(path) as archive:
            damaged = archive.testzip() is not None
    except FileNotFoundError:
        return False  # removed meanwhile
    except (zipfile.BadZipFile, OSError, EOFError, ValueError, NotImplementedError):
        damaged = True
    if damaged:
        say(f"the kept wheel {path} was damaged, and is removed")
        with suppress(OSError):
            path.unlink()
    return not damaged
