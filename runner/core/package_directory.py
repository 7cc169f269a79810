"""A directory of packages for machines without a network: its manifest, and every file compared with it.

manifest.json    written last: what it is for, and the hash of each file
framework/       wheels of the framework and of what it requires
framework.txt    their requirements with hashes, for pip
horovod/         Horovod's source, and what its build and installation need
compiled/SHELF/KEY/  Horovod's wheels that were compiled before, by where they were made, and their keys
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from runner.core.errors import RefusedError, UsageError
from runner.core.files import UnusableFileError, key_of, open_named, read_bytes, sha256
from runner.core.invocation import PROGRAM
from runner.core.progress import Progress
from runner.core.text import first_of

MANIFEST, LOCK, WORK = "manifest.json", ".lock", ".collecting"
FRAMEWORK, HOROVOD, COMPILED, REQUIREMENTS = "framework", "horovod", "compiled", "framework.txt"
CONTENT = (FRAMEWORK, REQUIREMENTS, HOROVOD, COMPILED)
_OURS = frozenset((MANIFEST, LOCK, WORK))
_FORMAT = 1
_MOST_NAMES = 5
_GLIBC = re.compile(r"manylinux_(\d+)_(\d+)_")
# PEP 571, 599, 600: the names that these had before.
_OLDER = {"manylinux1": (2, 5), "manylinux2010": (2, 12), "manylinux2014": (2, 17)}


class PackageFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A file of the directory; ``name``: its path there, with ``/``."""

    name: str
    sha256: str
    size_bytes: int


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the directory is for, and its files.

    Attributes:
        framework: ``pytorch`` or ``tensorflow``. device: of the site that it was collected for: ``cuda`` or ``cpu``.
        framework_version: of the wheels of the framework; empty where it holds none.
        requirements: by which these wheels were chosen.
        pythons: versions of Python, as ``3.11``. machine: the processor, as ``x86_64``.
        glibc: the oldest glibc that its wheels work with, as ``2.28``.
        made: date and time, UTC. horovod: version of its source.
        format: of this file.
    """

    framework: str
    device: str
    framework_version: str
    requirements: tuple[str, ...]
    pythons: tuple[str, ...]
    machine: str
    glibc: str
    made: str
    horovod: str
    files: tuple[PackageFile, ...]
    format: int = _FORMAT

    @property
    def identity(self) -> str:
        """Hash of its files' names and contents; the same for two collections of the same files."""
        return key_of(*(f"{file.name}\0{file.sha256}" for file in self.files))

    @property
    def size_bytes(self) -> int:
        """Size of all files."""
        return sum(file.size_bytes for file in self.files)

    @property
    def purpose(self) -> str:
        """What it is for, for people."""
        content = f"{self.framework} {self.framework_version}".strip() if self.framework_version else "Horovod alone"
        return f"{content}, Python {', '.join(self.pythons)}, {self.machine} with glibc {self.glibc} or later"


@dataclass(frozen=True)
class PackageDirectory:
    """A directory of packages, absolute, with its manifest."""

    path: Path
    manifest: Manifest

    def files(self, part: str) -> tuple[tuple[str, Path], ...]:
        """(name below the part, path) of each file of a part of CONTENT."""
        head = f"{part}/"
        names = (file.name for file in self.manifest.files if file.name.startswith(head))
        return tuple((name.removeprefix(head), self.path / name) for name in names)

    def content(self, file: PackageFile) -> bytes:
        """What is in one of its files, compared with the manifest as it is read: whose directory it is may exchange
        them after a ``check``. Raises RefusedError: it is another file; UsageError, OSError: as ``open_named``.
        """
        with open_named(self.path / file.name) as opened:
            content = opened.read(file.size_bytes + 1)
        if sha256(content) != file.sha256:
            what, where = "this is not the package that was collected", str(self.path / file.name)
            raise RefusedError(what, where=where, fix=collect_fix(self.path))
        return content


def opened(directory: Path) -> PackageDirectory:
    """The directory with its manifest; its files are not looked at. Raises as ``read`` does."""
    return PackageDirectory(directory.absolute(), read(directory.absolute()))


def collect_command(directory: Path) -> str:
    """The command that collects into it, as one types it where there is a network."""
    return f"{PROGRAM} env wheels {shlex.quote(str(directory))}"


def collect_fix(directory: Path) -> str:
    """What to do about a directory that cannot be used."""
    return f"collect it again where there is a network: {collect_command(directory)}; then copy all of it"


def read(directory: Path) -> Manifest:
    """The manifest of a directory whose collection is finished; its files are not looked at. Raises UsageError: there
    is no such directory. RefusedError: it has no manifest, or a damaged one.
    """
    if not directory.is_dir():
        raise UsageError(
            "there is no such directory of packages",
            where=f"--wheels {directory}",
            fix=f"make it where there is a network: {collect_command(directory)}; then copy all of it",
        )
    problem = ""
    try:
        manifest = msgspec.json.decode(read_bytes(directory / MANIFEST), type=Manifest)
    except FileNotFoundError:
        problem = "the collection of these packages is not finished: there is no manifest"
    except (msgspec.DecodeError, UnicodeDecodeError, UnusableFileError) as error:
        problem = f"the manifest of these packages is damaged: {error}"
    else:
        unsafe = [file.name for file in manifest.files if not _is_plain(file.name)]
        if unsafe:
            problem = f"the manifest of these packages names {unsafe[0]!r}"
        elif manifest.format != _FORMAT:
            problem = f"the manifest of these packages has format {manifest.format}, and this program reads {_FORMAT}"
    if problem:
        raise RefusedError(problem, where=str(directory / MANIFEST), fix=collect_fix(directory))
    return manifest


def check(directory: Path, manifest: Manifest, progress: Progress, *, parts: Sequence[str] = CONTENT) -> None:
    """Compare every file with the manifest, before anything of it is used.

    Args:
        parts: of CONTENT, those whose content is compared; names are compared in all of them.

    Raises:
        RefusedError: a file is damaged or missing, or one is there that was not collected; each is named.
        UsageError: one is another user's link.
    """
    expected = {file.name: file for file in manifest.files}
    present = set(_names(directory))
    chosen = [file for file in manifest.files if file.name.partition("/")[0] in parts]
    total, done = sum(file.size_bytes for file in chosen), 0
    progress.step(f"checking {len(chosen)} packages ({total / 1e6:.0f} MB) by their hashes")
    damaged = []
    for file in chosen:
        if file.name in present and not _is_whole(directory / file.name, file):
            damaged.append(file.name)
        done += file.size_bytes
        progress.moved(done, total)
    missing, foreign = sorted(set(expected) - present), sorted(present - set(expected))
    problems = (("damaged", damaged), ("missing", missing), ("not of the collection", foreign))
    listed = "; ".join(f"{what}: {shortened(names)}" for what, names in problems if names)
    if listed:
        again = collect_fix(directory)
        raise RefusedError(
            f"these are not the packages that were collected: {listed}",
            where=str(directory),
            fix=again if damaged or missing else f"remove what is not of the collection, or {again}",
        )


def misfit(manifest: Manifest, python: str, machine: str) -> str:
    """Why the packages do not fit this Python and processor; empty where they do.

    Args:
        python: its version, ``3.11`` or ``3.11.7``.
    """
    version = ".".join(python.split(".")[:2])
    if version not in manifest.pythons:
        return f"they are for Python {', '.join(manifest.pythons)}, and this is Python {python}"
    if machine != manifest.machine:
        return f"they are for {manifest.machine}, and this machine is {machine}"
    return ""


def glibc_of(names: Sequence[str]) -> str:
    """The oldest glibc that all these wheels work with, by the tags in their names (PEP 600).

    >>> glibc_of(["torch-2.13.0+cpu-cp311-cp311-manylinux_2_28_x86_64.whl", "six-1-py3-none-any.whl"])
    '2.28'
    """
    needs = [(2, 5)]
    for name in names:
        platform = name.removesuffix(".whl").rpartition("-")[2]
        tags = [(int(match[1]), int(match[2])) for match in _GLIBC.finditer(platform + "_")]
        tags += [version for old, version in _OLDER.items() if re.search(rf"(^|\.){old}_", platform)]
        if tags:
            needs.append(min(tags))
    newest = max(needs)
    return f"{newest[0]}.{newest[1]}"


def shortened(names: Sequence[str]) -> str:
    """The first names of a list, for people."""
    return first_of(names, _MOST_NAMES)


def is_free(directory: Path) -> bool:
    """Whether packages may be collected there: there is nothing yet, or what this program has collected."""
    if not directory.exists():
        return True
    return directory.is_dir() and (not any(directory.iterdir()) or any((directory / name).exists() for name in _OURS))


def _names(directory: Path) -> Iterator[str]:
    """Every file's path below the directory, except our own at its top."""
    for above, directories, files in os.walk(directory):
        place = Path(above).relative_to(directory)
        ours = _OURS if place == Path() else frozenset()
        directories[:] = [name for name in directories if name not in ours]
        linked = [name for name in directories if Path(above, name).is_symlink()]
        yield from ((place / name).as_posix() for name in (*files, *linked) if name not in ours)


def _is_plain(name: str) -> bool:
    parts = name.split("/")
    if any(part in ("", ".", "..") for part in parts) or "\0" in name:
        return False
    if parts[0] == COMPILED:
        # A wheel below its key, and that below its shelf (of which earlier collections know nothing).
        return len(parts) in (3, 4) and all(re.fullmatch(r"[0-9A-Za-z]{1,64}", part) for part in parts[1:-1])
    return parts[0] in CONTENT


def _is_whole(path: Path, file: PackageFile) -> bool:
    try:
        with open_named(path) as opened:
            return os.fstat(opened.fileno()).st_size == file.size_bytes and sha256(opened) == file.sha256
    except OSError:
        return False
