"""Run directories of this user: made, listed and found again by their ids. What lies in one: ``runner.jobs.run``."""

from __future__ import annotations

import errno
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from runner.core import files, paths
from runner.core.errors import UsageError
from runner.jobs.run import (
    CODE,
    CODE_DIFF,
    CODE_FILES,
    COMMAND,
    LAUNCHES,
    NODES,
    SCRIPT,
    STUDY,
    VERSIONS,
    Run,
    is_whole_id,
)
from runner.model.step import LIBRARY, JobScript

RunDirectory = Run
__all__ = [
    "CODE",
    "CODE_DIFF",
    "CODE_FILES",
    "COMMAND",
    "LAUNCHES",
    "NODES",
    "SCRIPT",
    "STUDY",
    "VERSIONS",
    "Run",
    "copy_program",
    "create",
    "discard",
    "index",
    "is_linked",
    "is_whole_id",
    "linked",
]

_FOLDERS = ("logs", "ranks", "nccl")


def create(root: Path, label: str, now_s: float) -> Run:
    """A new run directory below ``root`` with a unique name; ``runner.jobs.lookup`` knows it from anywhere.

    Raises:
        UsageError: it cannot be made there.
    """
    stamp = time.strftime("%Y%m%d-%H%M%S", time.localtime(now_s))
    try:
        root.mkdir(parents=True, exist_ok=True)
        index().mkdir(mode=0o700, parents=True, exist_ok=True)
        path = next(path for path in _candidates(root.resolve(), f"{stamp}-{label}") if _reserved(path))
        for folder in _FOLDERS:
            (path / folder).mkdir()
    except OSError as error:
        where = str(error.filename or root)
        in_index = where.startswith(str(paths.state_dir()))
        raise UsageError(
            f"the {'list of runs cannot be kept' if in_index else 'run directory cannot be made'}: {error.strerror}",
            where=where,
            fix="set RUNNER_STATE to a directory that you may write to"
            if in_index
            else "use --runs with a directory that every node sees and you may write to",
        ) from None
    return Run(path)


def create_at(path: Path) -> Run:
    """A run directory at ``path``, which is not among this user's runs: nothing was submitted from it.

    Raises:
        UsageError: it cannot be made there.
    """
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        if any(path.iterdir()):
            raise UsageError("there are files in it already", where=str(path), fix="name a directory that is not there")
        for folder in _FOLDERS:
            (path / folder).mkdir()
    except OSError as error:
        fix = "name another directory, which every node sees and you may write to"
        raise UsageError(f"it cannot be made: {error.strerror}", where=str(path), fix=fix) from None
    return Run(path.resolve())


def discard(run: Run) -> None:
    """Remove a run that was never submitted, and its entry in the list of runs."""
    shutil.rmtree(run.path, ignore_errors=True)
    with suppress(OSError):
        (index() / run.run_id).unlink()


def linked() -> Iterator[Run]:
    """Every run of this user whose directory is still there, the newest first; refused submissions, too. Each is looked
    at only when it is wanted.
    """
    with suppress(FileNotFoundError), os.scandir(index()) as entries:
        links = sorted(entries, key=lambda entry: entry.stat(follow_symlinks=False).st_mtime_ns, reverse=True)
        for link in links:
            path = Path(link.path)
            if path.is_dir():  # also False where it cannot be reached
                yield Run(path.resolve())


def is_linked(run: Run) -> bool:
    """Whether this user has submitted it, and it still lies where it was."""
    with suppress(OSError, RuntimeError):
        return (index() / run.run_id).resolve(strict=True) == run.path.resolve()
    return False


def copy_program(run: Run, library: Path, recipe: Path | None) -> None:
    """Copy the launcher and the recipe into the run directory, so that what ran can be read later.

    A program without a recipe stays where it is.

    Raises:
        UsageError: the recipe cannot be read.
        OSError: the run directory cannot be written.
    """
    runs = run.path.parent

    def ignored(folder: str, names: list[str]) -> set[str]:
        always = {name for name in names if name in ("__pycache__", ".git") or name.endswith(".pyc")}
        return always | {name for name in names if Path(folder, name).resolve() == runs}

    try:
        shutil.copytree(library, run.path / LIBRARY, ignore=ignored)
        if recipe is not None:
            shutil.copytree(recipe, run.path / "recipe", ignore=ignored)
    except shutil.Error as error:
        source, _target, why = error.args[0][0]
        for number in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS):
            if os.strerror(number) in why:
                raise OSError(number, os.strerror(number)) from None
        raise UsageError(f"the recipe cannot be copied: {why}", where=str(source)) from None


def write_script(directory: Path, script: JobScript) -> None:
    """Write a job's script, and into its library the files that it reads. Raises OSError."""
    (directory / LIBRARY).mkdir(exist_ok=True)
    for name, text in script.files.items():
        files.write_private(directory / LIBRARY / name, text)
    files.write_private(directory / SCRIPT, script.text)


def _candidates(root: Path, name: str) -> Iterator[Path]:
    yield root / name
    for number in range(2, 10_000):
        yield root / f"{name}.{number}"


def index() -> Path:
    """Links from run ids to run directories: an id is enough from any working directory."""
    return paths.state_dir() / "runs"


def _reserved(path: Path) -> bool:
    """Make the run directory and its link, if the name is free both there and among this user's runs."""
    link = index() / path.name
    try:
        path.mkdir(mode=0o700)
    except FileExistsError:
        return False
    try:
        link.symlink_to(path)
    except FileExistsError:
        if link.exists():
            path.rmdir()
            return False
        link.unlink()  # link of a deleted run
        link.symlink_to(path)
    return True
