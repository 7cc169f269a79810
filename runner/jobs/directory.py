"""The run directory: plan, script, provenance, logs, rank records, result, verdict.

It is enough to find the job again, to report and to rerun it, from any process and any working directory.

    plan.json  job.sh  provenance.json  job.json        the plan, the script, its origin, and the scheduler's job
    request.json  command.json                          what was asked for, and the command line that did, for a reader
    code.json  code.diff                                the user's code, and its uncommitted changes
    code/  code-files.json                              the copy of that code, if one runs, and the files it began with
    lib/  recipe/                                       launcher and program, copied at submission
    logs/batch.out|err  logs/rank-N.out|err             output of the script and of each rank
    logs/node-NAME.log  logs/cleanup.log                of what is run once a node before the ranks, and at the end
    ranks/N.start.json  N.exit.json  N.report.json      one record per rank
    nodes  versions  result.json  exit.json  verdict.json
"""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from runner.core import file_system, files, paths
from runner.core.errors import UsageError
from runner.model.origin import CommandLine
from runner.model.plan import PlanRecord

T = TypeVar("T")

SCRIPT = "job.sh"
REQUEST, COMMAND, CODE, CODE_DIFF = "request.json", "command.json", "code.json", "code.diff"
CODE_FILES = "code-files.json"  # which files the copy of the user's code had when it was made
VERSIONS = "versions"  # what the programs on the first node say of themselves
NODES = "nodes"  # the job's nodes, in the order in which ranks fill them
STUDY, LAUNCHES = "study.json", "launches"  # of a study: its run directories are STUDY/launches/LAUNCH/RUN
_FOLDERS = ("logs", "ranks", "nccl")
_ID = re.compile(r"\d{8}-\d{6}-(?P<name>.+)-\d+(\.\d+)?\Z")  # STAMP-NAME-RANKS, and a number where that was taken


def is_whole_id(text: str) -> bool:
    """Whether it has the form of a run's whole id."""
    return _ID.match(text) is not None


class RunDirectory:
    """One run's directory, absolute."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def run_id(self) -> str:
        """The run's id: the directory's name."""
        return self.path.name

    @property
    def name(self) -> str:
        """The name in the run's id (``--name``, or the recipe's); the id where it has none."""
        parts = _ID.match(self.run_id)
        return parts["name"] if parts else self.run_id

    @property
    def study(self) -> Path | None:
        """The directory of the study that it is a launch of; None where it is of none."""
        above = self.path.parents[2] if len(self.path.parents) > 3 else None
        is_launch = above is not None and self.path.parents[1].name == LAUNCHES and (above / STUDY).is_file()
        return above if is_launch else None

    @property
    def logs(self) -> Path:
        """Where the batch script's and the ranks' output lies."""
        return self.path / "logs"

    @property
    def ranks(self) -> Path:
        """Where the rank records lie."""
        return self.path / "ranks"

    def write(self, name: str, value: msgspec.Struct | dict[str, Any]) -> None:
        """Write ``value`` as JSON, whole or not at all. Undecodable bytes in strings survive as escapes."""
        files.write_private(self.path / name, json.dumps(msgspec.to_builtins(value), indent=2) + "\n")

    def read(self, name: str, kind: type[T]) -> T | None:
        """The JSON file ``name`` as ``kind``; None if it is not there or not whole."""
        try:
            return msgspec.convert(json.loads(file_system.read_bytes(self.path / name)), kind)
        except (FileNotFoundError, file_system.UnusableFileError):
            return None
        except (ValueError, RecursionError, msgspec.ValidationError):
            return None

    def command_line(self) -> CommandLine:
        """The command line that submitted this run.

        Raises:
            UsageError: none was recorded.
        """
        found = self.read(COMMAND, CommandLine)
        if found is None or not found.arguments or found.arguments[0] not in ("submit", "run"):
            raise UsageError(
                "this run has no recorded command line: it is older, or was submitted from Python",
                where=str(self.path / COMMAND),
                fix="submit it anew; its plan.json has every decision",
            )
        return found

    def plan(self) -> PlanRecord:
        """The plan that this run was submitted with, as the run directory keeps it.

        Raises:
            UsageError: it cannot be read.
        """
        found = self.read("plan.json", PlanRecord)
        if found is None:
            raise UsageError("the run's plan cannot be read", where=str(self.path / "plan.json"), fix="submit again")
        return found


def create(root: Path, label: str, now_s: float) -> RunDirectory:
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
    return RunDirectory(path)


def discard(run: RunDirectory) -> None:
    """Remove a run that was never submitted, and its entry in the list of runs."""
    shutil.rmtree(run.path, ignore_errors=True)
    with suppress(OSError):
        (index() / run.run_id).unlink()


def known() -> tuple[RunDirectory, ...]:
    """Every run of this user whose directory is still there, the newest first; refused submissions, too."""
    return tuple(linked())


def linked() -> Iterator[RunDirectory]:
    """As ``known``, one after the other: each is looked at only when it is wanted."""
    with suppress(FileNotFoundError), os.scandir(index()) as entries:
        links = sorted(entries, key=lambda entry: entry.stat(follow_symlinks=False).st_mtime_ns, reverse=True)
        for link in links:
            path = Path(link.path)
            if path.is_dir():  # also False where it cannot be reached
                yield RunDirectory(path.resolve())


def is_linked(run: RunDirectory) -> bool:
    """Whether this user has submitted it, and it still lies where it was."""
    with suppress(OSError, RuntimeError):
        return (index() / run.run_id).resolve(strict=True) == run.path.resolve()
    return False


def copy_program(run: RunDirectory, library: Path, recipe: Path | None) -> None:
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
        shutil.copytree(library, run.path / "lib", ignore=ignored)
        if recipe is not None:
            shutil.copytree(recipe, run.path / "recipe", ignore=ignored)
    except shutil.Error as error:
        source, _target, why = error.args[0][0]
        for number in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS):
            if os.strerror(number) in why:
                raise OSError(number, os.strerror(number)) from None
        raise UsageError(f"the recipe cannot be copied: {why}", where=str(source)) from None


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
