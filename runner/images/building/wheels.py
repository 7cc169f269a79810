"""Horovod's wheels, kept by key for whoever builds next: offered to a build, and taken out of one.

A wheel is a zip archive, whose checksums are compared before it is taken: one that is damaged is removed, and Horovod
is compiled again.
"""

from __future__ import annotations

import re
import zipfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from runner.core import files, paths
from runner.core.errors import InfrastructureError
from runner.core.package_directory import COMPILED, PackageDirectory

SHIPPED = "shipped"  # the key of a Horovod that is the base's own (containers/horovod/build.py)
_KEY = re.compile(r"[0-9A-Za-z]{1,64}")


def find(key: str, say: Callable[[str], None]) -> Path | None:
    """The whole wheel kept under this key; None where there is none, or caches are to be ignored."""
    candidates = [] if paths.caches_ignored() else sorted(_place(key).glob("*.whl"))
    return next((path for path in candidates if _is_whole(path, say)), None)


def offered(say: Callable[[str], None]) -> tuple[tuple[str, Path], ...]:
    """Every kept wheel, under the name in the context where ``build.py`` looks for the one that fits."""
    return tuple((f"containers/horovod/wheels/{path.parent.name}/{path.name}", path) for path in kept(say))


def kept(say: Callable[[str], None]) -> tuple[Path, ...]:
    """Every kept wheel, in the directory of its key."""
    candidates = [] if paths.caches_ignored() else sorted(paths.cache("wheels").glob("*/*.whl"))
    return tuple(path for path in candidates if _is_whole(path, say))


def keep(key: str, name: str, content: bytes) -> Path:
    """Keep a wheel; it is on disk when this returns."""
    path = paths.ensure_directory(_place(key)) / name
    files.write(path, content)
    return path


def keep_built(directory: Path) -> None:
    """Keep the wheel that ``build.py`` left in ``directory`` with its key; nothing where the base's own was taken."""
    # The base's own programs could have written anything here: a path for a key, a link to a file of this machine.
    key = (directory / "key").read_text("utf-8").strip() if _is_plain(directory / "key") else SHIPPED
    for wheel in filter(_is_plain, directory.glob("*.whl")):
        if key != SHIPPED and not (_place(key) / wheel.name).exists():
            keep(key, wheel.name, wheel.read_bytes())


def keep_collected(packages: PackageDirectory) -> None:
    """Keep the wheels of Horovod that were collected with other packages: a build takes the one whose key fits."""
    for name, path in packages.files(COMPILED):
        key, _, wheel = name.partition("/")
        keep(key, wheel, path.read_bytes())


def _place(key: str) -> Path:
    """The directory of a key's wheel. The key comes from a program that runs in the base.

    Raises:
        InfrastructureError: it is no key, but perhaps a path.
    """
    if not _KEY.fullmatch(key):
        raise InfrastructureError(
            f"the build answered with {key[:60]!r}, which is no key of a wheel",
            where="containers/horovod/build.py in the base",
            fix="do not use this base: its Python does something else than it is asked to",
        )
    return paths.cache("wheels") / key


def _is_plain(path: Path) -> bool:
    """Whether it is a file, with no link on the way from the stage's root."""
    return path.is_file() and not any(part.is_symlink() for part in (path, *path.parents[:2]))


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
