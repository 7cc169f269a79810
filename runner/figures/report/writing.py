"""Writing a report's files: all of them complete, or none.

Everything is made and written under temporary names first, so that a full disk, a missing permission or a program that
is ended leaves what was there. A directory that exists must be empty or hold an earlier report.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import msgspec

from runner.core import files, ownership
from runner.core.columns import as_csv
from runner.core.errors import InfrastructureError, UsageError
from runner.core.lock import locked
from runner.figures.report.page import page
from runner.figures.report.png import png
from runner.figures.tables import Ranked, loss_columns, losses_of, point_columns, rank_columns, run_columns
from runner.model.report import Report

PAGE, PICTURE, FACTS = "report.html", "report.png", "report.json"
NAMES = (PAGE, PICTURE, FACTS, "runs.csv", "ranks.csv", "points.csv", "losses.csv")
_LOCK, _LIMIT_S = ".report.lock", 60.0


def write(report: Report, directory: Path, say: Callable[[str], None]) -> Report:
    """Write the report into ``directory``, which is made where it is missing; returns it with the files' names.

    Raises:
        UsageError: the directory is a file, or holds something else than a report.
        InfrastructureError: it cannot be written: no space, no permission.
    """
    check(directory, new=True)
    place = next(each for each in (directory, *directory.absolute().parents) if each.exists())
    if not os.access(place, os.W_OK | os.X_OK):  # said before the pictures are made
        raise _cannot_be_written(errno.EACCES, directory)
    tables = csv_files(report)
    names = tuple(name for name in NAMES if name in tables or name in (PAGE, PICTURE, FACTS))
    complete = msgspec.structs.replace(report, files=names)
    contents = {name: table.encode("utf-8", "backslashreplace") for name, table in tables.items()}
    contents[PAGE] = page(complete).encode("utf-8", "backslashreplace")
    contents[PICTURE] = png(complete)
    # The same as ``result`` of ``report --json``.
    contents[FACTS] = f"{json.dumps(msgspec.to_builtins(complete), indent=1)}\n".encode()
    try:
        with _directory(directory), locked(directory / _LOCK, say, limit_s=_LIMIT_S):
            try:
                check(directory)
                _replace_all(directory, contents)
            finally:
                (directory / _LOCK).unlink(missing_ok=True)
    except OSError as error:
        raise _cannot_be_written(error.errno or errno.EIO, directory) from None
    return complete


def csv_files(report: Report) -> dict[str, str]:
    """Tidy tables: name of a file -> its content. A column is one quantity, with its unit in its name."""
    ranks = [Ranked(each, rank) for each in report.detailed for rank in each.ranks]
    tables = {
        "runs.csv": as_csv(run_columns(report.rows), report.rows),
        "ranks.csv": as_csv(rank_columns(demonstration=False), ranks),
    }
    if report.study is not None:
        tables["points.csv"] = as_csv(point_columns(report.unit), report.study.points)
        tables["losses.csv"] = as_csv(loss_columns(), losses_of(report.study.losses, report.study.points))
    return tables


def _cannot_be_written(number: int, directory: Path) -> InfrastructureError:
    room = "free space there, or " if number in (errno.ENOSPC, errno.EDQUOT) else ""
    fix = f"{room}name another directory with -o; what was there is as it was"
    return InfrastructureError(f"the report cannot be written: {os.strerror(number)}", where=str(directory), fix=fix)


def check(directory: Path, *, new: bool = False) -> None:
    """Refuse a directory that holds something else; ``new``: it may not be there.

    Raises:
        UsageError: it is no directory, or not empty and no report; or others could exchange it.
    """
    try:
        if whose := ownership.exchangeable_by(directory, new=new):
            what = f"this directory is {whose}: another user could exchange the report, or lead it elsewhere"
            fix = f"name a directory of your own with -o; {ownership.way_out(directory, whose)}"
            raise UsageError(what, where=str(directory), fix=fix)
        foreign = sorted(
            path.name
            for path in directory.iterdir()
            if path.name not in (*NAMES, _LOCK) and not _is_left_behind(path.name)
        )
        why = f"this directory holds something else than a report: {foreign[0]}" if foreign else ""
    except FileNotFoundError:
        return
    except NotADirectoryError:
        why = "this is no directory, and a report has several files"
    except OSError as error:
        why = f"this directory cannot be read: {error.strerror}"
    if why:
        fix = "name a new directory with -o, or that of an earlier report"
        raise UsageError(why, where=str(directory), fix=fix)


def _is_left_behind(name: str) -> bool:
    """Whether it is a temporary file of a report that was not finished."""
    return any(name.startswith(files.temporary_name(Path(each)).name.partition("~")[0] + "~") for each in NAMES)


@contextmanager
def _directory(directory: Path) -> Iterator[None]:
    """The directory exists in the block; one that was made for it goes if the block fails."""
    is_new = not directory.exists()
    files.make_closed(directory)  # it quotes logs, which are closed, too
    try:
        yield
    except BaseException:
        if is_new:
            with suppress(OSError):
                directory.rmdir()
        raise


def _replace_all(directory: Path, contents: Mapping[str, bytes]) -> None:
    """Write every file under a temporary name, then give all of them their names; the page comes last."""
    for path in directory.iterdir():
        if _is_left_behind(path.name):  # whoever made it has not our lock, and so is gone
            path.unlink(missing_ok=True)
    with ExitStack() as stack:
        for name in sorted(contents, key=lambda name: name != PAGE):  # names are given in reverse order
            temporary = stack.enter_context(files.replacement(directory / name))
            files.make(temporary, contents[name], mode=files.PRIVATE)  # as ``_directory``
            files.sync(temporary)  # what has no room is known before any file has its name
    for name in NAMES:
        if name not in contents:  # of an earlier report on a study
            (directory / name).unlink(missing_ok=True)
