"""Horovod's wheels, kept by key for whoever builds next: offered to a build, and taken out of one.

A base image decides what is in the wheels that are made inside it, and what it calls their keys. So each base has a
shelf of its own, by its digest: no other base is offered what is there. A wheel whose checksums are wrong is removed,
and one that another user could have put there is left alone.
"""

from __future__ import annotations

import os
import re
import stat
import zipfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from runner.core import files, ownership, paths
from runner.core.errors import InfrastructureError
from runner.core.files import key_of
from runner.core.package_directory import COMPILED, PackageDirectory

SHIPPED = "shipped"  # the key of a Horovod that is the base's own (containers/horovod/build.py)
_KEY = re.compile(r"[0-9A-Za-z]{1,64}")


def shelf(base: str = "") -> Path:
    """The directory of the wheels that were made inside the base with this digest, in directories of their keys; of
    those of environments, which have no base, without one.
    """
    return paths.cache("wheels") / (key_of(base) if base else "environments")


def find(base: str, key: str, say: Callable[[str], None]) -> Path | None:
    """The base's whole wheel under this key; None where there is none, or caches are to be ignored."""
    candidates = [] if paths.caches_ignored() else sorted(_place(base, key).glob("*.whl"))
    return next((path for path in candidates if _is_whole(path, say)), None)


def offered(base: str, say: Callable[[str], None]) -> tuple[tuple[str, Path], ...]:
    """Every wheel of the base, under the name in the context where ``build.py`` looks for the one that fits."""
    of_base = (path for path in kept(say) if path.parents[1] == shelf(base))
    return tuple((f"containers/horovod/wheels/{path.parent.name}/{path.name}", path) for path in of_base)


def kept(say: Callable[[str], None]) -> tuple[Path, ...]:
    """Every kept wheel, in the directory of its key, on its shelf."""
    candidates = [] if paths.caches_ignored() else sorted(paths.cache("wheels").glob("*/*/*.whl"))
    return tuple(path for path in candidates if _is_whole(path, say))


def keep(base: str, key: str, name: str, content: bytes) -> Path:
    """Keep a wheel that was made inside the base with this digest; it is on disk when this returns."""
    path = paths.ensure_directory(_place(base, key)) / name
    files.write(path, content)
    return path


def keep_built(base: str, directory: Path) -> None:
    """Keep the wheel that ``build.py`` left in ``directory`` with its key; nothing where the base's own was taken."""
    # The base's own programs could have written anything here: a path for a key, a link to a file of this machine.
    key = (directory / "key").read_text("utf-8").strip() if _is_plain(directory / "key") else SHIPPED
    for wheel in filter(_is_plain, directory.glob("*.whl")):
        if key != SHIPPED and not (_place(base, key) / wheel.name).exists():
            keep(base, key, wheel.name, wheel.read_bytes())


def keep_collected(packages: PackageDirectory, say: Callable[[str], None]) -> None:
    """Keep the wheels of Horovod that were collected with other packages: each on its shelf again; but for those that
    another user can change, whose word it would be alone in which base they were made.

    Earlier collections do not tell where a wheel was made: theirs are left where they are.
    """
    root = ownership.closed_to_others(packages.path)
    for name, path in packages.files(COMPILED):
        if name.count("/") == 2:
            content = None
            with suppress(OSError):
                if root is not None and ownership.closed_to_others(root / COMPILED / name):
                    content = files.read_below(root, f"{COMPILED}/{name}")  # a link could lead to any file of this user
            if content is None:
                say(f"the wheel {path} is not used: another user can change it, or it is a link")
                continue
            target = paths.cache("wheels") / name
            paths.ensure_directory(target.parent)
            files.write(target, content)


def _place(base: str, key: str) -> Path:
    """The directory of a key's wheel. The key comes from a program that runs in the base, and could be a path."""
    if not _KEY.fullmatch(key):
        raise InfrastructureError(
            f"the build answered with {key[:60]!r}, which is no key of a wheel",
            where="containers/horovod/build.py in the base",
            fix="do not use this base: its Python does something else than it is asked to",
        )
    return shelf(base) / key


def _is_plain(path: Path) -> bool:
    """Whether it is a file, with no link on the way from the stage's root."""
    return path.is_file() and not any(part.is_symlink() for part in (path, *path.parents[:2]))


def _is_whole(path: Path, say: Callable[[str], None]) -> bool:
    """Whether it is of this user alone, and its checksums are right; it is removed where they are not."""
    try:
        # The wheel, its key's directory, its shelf, and that of all.
        for status in map(os.stat, (path, *path.parents[:3])):
            if status.st_uid not in (0, os.geteuid()) or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
                say(f"the kept wheel {path} is not used: others can write to it, or to a directory above it")
                return False
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
