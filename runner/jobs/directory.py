"""The run directory: plan, script, provenance, logs, rank records, result, verdict.

It alone is enough to find the job again, report and rerun, from any process and any working directory.

    plan.json  job.sh  provenance.json  job.json        what was decided, submitted, from what, and as which job
    lib/  recipe/                                       launcher and program, as they were
    logs/batch.out|err  logs/rank-N.out|err             what the script and each rank said
    ranks/N.start.json  N.exit.json  N.report.json      one record per rank
    result.json  exit.json  verdict.json
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from runner import paths
from runner.errors import UsageError
from runner.files import atomic
from runner.model.plan import PlanRecord

T = TypeVar("T")

SCRIPT = "job.sh"
_FOLDERS = ("logs", "ranks", "nccl")


class RunDirectory:
    """One run's directory, absolute."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def run_id(self) -> str:
        """The run's id: the directory's name."""
        return self.path.name

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
        atomic.write_private(self.path / name, json.dumps(msgspec.to_builtins(value), indent=2) + "\n")

    def read(self, name: str, kind: type[T]) -> T | None:
        """The JSON file ``name`` as ``kind``; None if it is not there or not whole."""
        try:
            return msgspec.convert(json.loads((self.path / name).read_text()), kind)
        except (FileNotFoundError, ValueError, msgspec.ValidationError):
            return None

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
    """A new run directory below ``root``, of a name that is its own, known to ``find`` from anywhere.

    Raises:
        UsageError: it cannot be made there.
    """
    stamp = time.strftime("%Y%m%d-%H%M%S", time.localtime(now_s))
    try:
        root.mkdir(parents=True, exist_ok=True)
        _index().mkdir(mode=0o700, parents=True, exist_ok=True)
        path = next(path for path in _candidates(root.resolve(), f"{stamp}-{label}") if _claimed(path))
        for folder in _FOLDERS:
            (path / folder).mkdir()
    except OSError as error:
        where = str(error.filename or root)
        listed = where.startswith(str(paths.state_dir()))
        raise UsageError(
            f"the {'list of runs cannot be kept' if listed else 'run directory cannot be made'}: {error.strerror}",
            where=where,
            fix="name a directory that you may write to, as RUNNER_STATE"
            if listed
            else "name a directory that every node sees and you may write, with --runs",
        ) from None
    return RunDirectory(path)


def discard(run: RunDirectory) -> None:
    """Remove a run that came to nothing, and what is known of it."""
    shutil.rmtree(run.path, ignore_errors=True)
    with suppress(OSError):
        (_index() / run.run_id).unlink()


def find(run: str | None) -> RunDirectory:
    """The run of that id or directory; None is the newest of this user.

    Raises:
        UsageError: there is none.
    """
    if run is None:
        known = sorted(_index().glob("*"), key=lambda link: link.lstat().st_mtime_ns)
        for link in reversed(known):
            if (link / SCRIPT).is_file():
                return RunDirectory(link.resolve())
        raise UsageError("no run is known yet", fix="`python -m runner submit` makes one")
    for candidate in (Path(run), _index() / run):
        if (candidate / SCRIPT).is_file():
            return RunDirectory(candidate.resolve())
    raise UsageError(f"no run {run!r}", where=str(_index()), fix="give a run's id, or its directory")


def known() -> tuple[RunDirectory, ...]:
    """Every run of this user whose directory is still there, the newest first."""
    links = sorted(_index().glob("*"), key=lambda link: link.lstat().st_mtime_ns, reverse=True)
    return tuple(RunDirectory(link.resolve()) for link in links if link.is_dir())


def copy_program(run: RunDirectory, library: Path, recipe: Path | None) -> None:
    """The launcher and the recipe as they are now into the run directory, so that what ran can be read later.

    A program of the user's own (no recipe) stays where it is.

    Raises:
        UsageError: the recipe cannot be read.
        OSError: the run directory does not take it.
    """
    runs = run.path.parent

    def left_out(folder: str, names: list[str]) -> set[str]:
        kept_apart = {name for name in names if name in ("__pycache__", ".git") or name.endswith(".pyc")}
        return kept_apart | {name for name in names if Path(folder, name).resolve() == runs}

    try:
        shutil.copytree(library, run.path / "lib", ignore=left_out)
        if recipe is not None:
            shutil.copytree(recipe, run.path / "recipe", ignore=left_out)
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


def _index() -> Path:
    """Links from run ids to run directories, so that an id is enough from any working directory."""
    return paths.state_dir() / "runs"


def _claimed(path: Path) -> bool:
    """Whether the run directory is ours now: its name is free both there and among this user's runs."""
    link = _index() / path.name
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
        link.unlink()  # of a run that was deleted
        link.symlink_to(path)
    return True
