"""Collect packages for machines without a network into one directory, whose manifest is written last.

What was there before stays valid until the new packages are complete. A collection that was killed is begun anew, and
takes from pip's cache in the directory what it had fetched.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from datetime import datetime, timezone
from pathlib import Path

import msgspec

from runner.core import files as atomic
from runner.core import package_directory
from runner.core.errors import UsageError
from runner.core.files import sha256
from runner.core.hide import names_user
from runner.core.lock import locked
from runner.core.package_directory import (
    COMPILED,
    CONTENT,
    FRAMEWORK,
    HOROVOD,
    LOCK,
    MANIFEST,
    REQUIREMENTS,
    WORK,
    Manifest,
    PackageFile,
)  # fmt: skip
from runner.core.progress import Progress
from runner.environments import script as scripts
from runner.environments.directory import check_own, check_setup
from runner.environments.make import failure, programs, remove, run_script
from runner.environments.script import PackagesSpec
from runner.images.building import wheels

LIMIT_S = 2 * 3600.0
_CACHE, _LOG, _ABOUT, _LOCK = "cache", "collect.log", "about.json", "lock"
# The distributions whose version is the framework's.
_FRAMEWORKS = {"pytorch": ("torch",), "tensorflow": ("tensorflow", "tensorflow_cpu")}


class _About(msgspec.Struct, frozen=True):
    """What ``collect.py`` says: for which Pythons and processor; ``glibc``: of this machine."""

    pythons: tuple[str, ...]
    machine: str
    glibc: str
    horovod: str


def collect(spec: PackagesSpec, directory: Path, progress: Progress) -> Manifest:
    """Collect the packages; another process that collects into this directory is waited for.

    Args:
        directory: absolute; made where it is absent.

    Raises:
        UsageError: it holds something else. RefusedError: the site's modules cannot be loaded, or a stranger could.
        ProgramFailedError: a package is not available. InfrastructureError, UnknownStateError: disk, lock, time limit.
    """
    check_setup(spec.setup)
    if not package_directory.is_free(directory):
        what = "the directory is not empty, and holds no packages that this program collected"
        raise UsageError(what, where=str(directory), fix="name another directory")
    directory.mkdir(parents=True, exist_ok=True)
    check_own(directory)
    work = directory / WORK
    with locked(directory / LOCK, progress.step):
        work.mkdir(mode=0o700, exist_ok=True)
        check_own(work)
        with locked(work / _LOCK, progress.step):  # a script whose starter was killed may still be running
            _clear(work, keep=(_CACHE, _LOCK))
        try:
            manifest = _collected(spec, work, progress)
        except BaseException:
            _clear(work, keep=(_CACHE, _LOG))
            raise
        _publish(work, directory, manifest)
    return manifest


def requirements_of(files: Sequence[PackageFile]) -> str:
    """Wheels as lines of requirements with their hashes (pip's hash-checking mode), from their names (PEP 427)."""
    named = ((file.name.rpartition("/")[2].split("-"), file.sha256) for file in files)
    return "".join(f"{name}=={version} --hash=sha256:{sha256}\n" for (name, version, *_), sha256 in named)


def framework_version(framework: str, names: Sequence[str]) -> str:
    """The framework's version, from the names of the wheels; empty where it is not among them."""
    parts = (name.split("-") for name in names)
    return next((part[1] for part in parts if part[0].lower() in _FRAMEWORKS[framework]), "")


def _collected(spec: PackagesSpec, work: Path, progress: Progress) -> Manifest:
    """Run the script: the packages then lie below ``work`` as they will in the directory."""
    script, log = work / "collect.sh", work / _LOG
    script.write_text(scripts.collection(spec, work, programs()), "utf-8", "surrogateescape")
    progress.step(f"collecting packages; the full output is in {log}")
    code, output = run_script(script, log, progress, LIMIT_S)
    if code:
        raise failure(code, output, str(log))
    about = msgspec.json.decode((work / _ABOUT).read_bytes(), type=_About)
    _add_compiled(about, work / COMPILED, progress)
    framework = [_file(path, work) for path in _files(work / FRAMEWORK)]
    if framework:
        (work / REQUIREMENTS).write_text(requirements_of(framework), "utf-8")
    rest = [_file(path, work) for part in (REQUIREMENTS, HOROVOD, COMPILED) for path in _files(work / part)]
    names = [file.name.rpartition("/")[2] for file in (*framework, *rest) if not file.name.startswith(COMPILED)]
    version = framework_version(spec.framework, [file.name.rpartition("/")[2] for file in framework])
    # A wheel that was built here works with this machine's.
    glibc = about.glibc if any("-linux_" in name for name in names) else package_directory.glibc_of(names)
    return Manifest(
        framework=spec.framework, device=spec.device, framework_version=version, requirements=spec.requirements,
        pythons=about.pythons, machine=about.machine, glibc=glibc, horovod=about.horovod, files=(*framework, *rest),
        made=datetime.now(timezone.utc).isoformat(timespec="seconds"),
    )  # fmt: skip


def _add_compiled(about: _About, target: Path, progress: Progress) -> None:
    """Copy the wheels of Horovod that were compiled on this machine for such a Python, by their keys."""
    tags = tuple(f"-cp{version.replace('.', '')}-" for version in about.pythons)
    for wheel in wheels.kept(progress.line):
        if any(tag in wheel.name for tag in tags) and wheel.stem.endswith(f"_{about.machine}"):
            place = target / wheel.parents[1].name / wheel.parent.name
            place.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(wheel, place / wheel.name)


def _publish(work: Path, directory: Path, manifest: Manifest) -> None:
    """Put the packages in their places; without a manifest meanwhile, so that a killed change is noticed."""
    (directory / MANIFEST).unlink(missing_ok=True)
    atomic.sync_directory(directory)
    for part in CONTENT:
        remove(directory / part)
        if (work / part).exists():
            (work / part).rename(directory / part)
    mode = atomic.PRIVATE if any(map(names_user, manifest.requirements)) else None  # they may have a token
    atomic.write(directory / MANIFEST, msgspec.json.format(msgspec.json.encode(manifest)) + b"\n", mode=mode)
    remove(work)


def _file(path: Path, work: Path) -> PackageFile:
    """A file's name and hash; it is on disk afterwards."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
    return PackageFile(path.relative_to(work).as_posix(), sha256(path), path.stat().st_size)


def _files(path: Path) -> Iterator[Path]:
    """The file itself, or every file below a directory, sorted; none where there is nothing."""
    if path.is_file():
        yield path
    elif path.is_dir():
        yield from (each for each in sorted(path.rglob("*")) if each.is_file())


def _clear(work: Path, *, keep: Sequence[str]) -> None:
    for path in list(work.iterdir()):
        if path.name not in keep:
            remove(path)
