"""Run directories: made where no other user could exchange them, filled with what runs, and discarded."""

from __future__ import annotations

import errno
import os
import shutil
import time
from contextlib import suppress
from pathlib import Path

from runner.core import files, ownership, paths
from runner.core.errors import UsageError
from runner.jobs import seals
from runner.jobs.directory import LAUNCHES, SCRIPT, Run, index
from runner.model.step import LIBRARY, JobScript


def create(root: Path, label: str, now_s: float, at: Path | None = None) -> Run:
    """A new run directory below ``root`` with a unique name, known from anywhere by it; or one at ``at``, which is not
    among this user's runs, as nothing is submitted from it. Raises UsageError: it cannot be made there.
    """
    try:
        if at is None:
            root = make_root(root)
            files.make_closed(index())
            if root == index().resolve():
                raise UsageError(
                    "the list of runs lies there", where=str(root), fix="use --runs with another directory"
                )
            name = f"{time.strftime('%Y%m%d-%H%M%S', time.localtime(now_s))}-{label}"
            names = (name if number == 1 else f"{name}.{number}" for number in range(1, 10_000))
            path = next(path for path in map(root.joinpath, names) if _reserved(path))
        else:
            at.mkdir(mode=0o700, parents=True, exist_ok=True)
            check_place(at)  # as it is named, too
            path = at.resolve()
            check_place(path)
            before = path.stat().st_mode & 0o7777  # it may have been there
            path.chmod(0o700)
            if any(path.iterdir()):  # when no other user can put any
                path.chmod(before)
                fix = "name a directory that is not there"
                raise UsageError("there are files in it already", where=str(at), fix=fix)
        for folder in ("logs", "ranks", "nccl"):
            (path / folder).mkdir()
    except OSError as error:
        where = str(at or error.filename or root)
        if at is not None:
            what, fix = "it cannot be made", "name another directory, which every node sees and you may write to"
        elif where.startswith(str(paths.state_dir())):
            what, fix = "the list of runs cannot be kept", "set RUNNER_STATE to a directory that you may write to"
        else:
            what = "the run directory cannot be made"
            fix = "use --runs with a directory that every node sees and you may write to"
        raise UsageError(f"{what}: {error.strerror}", where=where, fix=fix) from None
    return Run(path)


def make_root(root: Path) -> Path:
    """Make a directory of run directories where there is none; one made here ignores itself for git. Returns its real
    path: where others write, a link may lead elsewhere by then. Raises OSError; UsageError: others could exchange them.
    """
    if is_new := not root.is_dir():
        root.mkdir(parents=True, exist_ok=True)
    check_place(root)  # as it is named, too: who holds that name from here on goes where it leads then
    root = root.resolve()
    check_place(root)
    if is_new and root.parent.name != LAUNCHES:  # the directory of a launch lies in one that does
        with suppress(OSError), (root / ".gitignore").open("x", encoding="ascii") as ignored:
            ignored.write("*\n")
    return root


def check_place(directory: Path, *, new: bool = False) -> None:
    """Refuse a place where others could exchange a job's script before it is started; ``new``: it may not be there yet.
    Raises OSError, UsageError.
    """
    if whose := ownership.exchangeable_by(directory, new=new):
        what = f"this directory is {whose}: another user could exchange what your job is started from"
        fix = f"name a directory of your own: --runs, or --write, DIR; {ownership.way_out(directory, whose)}"
        raise UsageError(what, where=str(directory), fix=fix)


def discard(run: Run) -> None:
    """Remove a run that was never submitted, and its entry in the list of runs."""
    shutil.rmtree(run.path, ignore_errors=True)
    for own in (index(), seals.judgements(), seals.orders()):
        with suppress(OSError):
            (own / run.run_id).unlink()


def copy_program(run: Run, library: Path, recipe: Path | None) -> None:
    """Copy the launcher and the recipe into the run directory, so that what ran can be read later.

    A program without a recipe stays where it is.

    Raises:
        UsageError: the recipe cannot be read, or has links of another user.
        OSError: the run directory cannot be written.
    """
    # Links of the list of runs lead to this very run.
    left_out = {run.path.parent, paths.state_dir().resolve(), index().resolve()}

    def ignored(folder: str, names: list[str]) -> set[str]:
        if link := next((name for name in names if ownership.is_strangers_link(Path(folder, name))), ""):
            raise UsageError("this is another user's link", where=str(Path(folder, link)), fix="copy the recipe first")
        always = {name for name in names if name in ("__pycache__", ".git") or name.endswith(".pyc")}
        folders = (name for name in names if Path(folder, name).is_dir())
        return always | {name for name in folders if Path(folder, name).resolve() in left_out}

    def copy(source: Path, name: str) -> None:
        shutil.copytree(source, copied := run.path / name, ignore=ignored)
        for each in (copied, *copied.rglob("*")):  # nor may a group write there once the run is opened
            each.chmod(each.stat().st_mode & ~0o022)

    try:
        copy(library, LIBRARY)
        if recipe is not None:
            copy(recipe, "recipe")
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
        (seals.orders() / path.name).unlink(missing_ok=True)
        link.symlink_to(path)
    return True
