"""The run directory: plan, script, provenance, logs, rank records, result, verdict.

It alone is enough to find the job again, report and rerun, from any process and any working directory.

    plan.json  job.sh  provenance.json  job.json        what was decided, submitted, from what, and as which job
    lib/  recipe/                                       launcher and program, as they were
    logs/batch.out|err  logs/rank-N.out|err             what the script and each rank said
    ranks/N.start.json  N.exit.json  N.report.json      one record per rank
    result.json  exit.json  verdict.json
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from runner import paths
from runner.errors import UsageError
from runner.model.plan import Plan

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
        write_whole(self.path / name, json.dumps(msgspec.to_builtins(value), indent=2) + "\n")

    def read(self, name: str, kind: type[T]) -> T | None:
        """The JSON file ``name`` as ``kind``; None if it is not there or not whole."""
        try:
            return msgspec.convert(json.loads((self.path / name).read_text()), kind)
        except (FileNotFoundError, ValueError, msgspec.ValidationError):
            return None

    def plan(self) -> Plan:
        """The plan that this run was submitted with.

        Raises:
            UsageError: it cannot be read.
        """
        found = self.read("plan.json", Plan)
        if found is None:
            raise UsageError("the run's plan cannot be read", where=str(self.path / "plan.json"), mend="submit again")
        return found


def create(root: Path, label: str, now_s: float) -> RunDirectory:
    """A new run directory below ``root``, of a name that is its own, known to ``find`` from anywhere.

    Raises:
        UsageError: it cannot be made there.
    """
    stamp = time.strftime("%Y%m%d-%H%M%S", time.localtime(now_s))
    try:
        root.mkdir(parents=True, exist_ok=True)
        for path in _candidates(root.resolve(), f"{stamp}-{label}"):
            with suppress(FileExistsError):
                path.mkdir(mode=0o700)
                break
        for folder in _FOLDERS:
            (path / folder).mkdir()
    except OSError as error:
        raise UsageError(
            f"the run directory cannot be made: {error.strerror}",
            where=str(error.filename or root),
            mend="name a directory that every node sees and you may write, with --runs",
        ) from None
    _remember(path)
    return RunDirectory(path)


def find(run: str | None) -> RunDirectory:
    """The run of that id or directory; None is the newest of this user.

    Raises:
        UsageError: there is none.
    """
    if run is None:
        known = sorted(_index().glob("*"), key=lambda link: link.name)
        for link in reversed(known):
            if (link / SCRIPT).is_file():
                return RunDirectory(link.resolve())
        raise UsageError("no run is known yet", mend="`python -m runner submit` makes one")
    for candidate in (Path(run), _index() / run):
        if (candidate / SCRIPT).is_file():
            return RunDirectory(candidate.resolve())
    raise UsageError(f"no run {run!r}", where=str(_index()), mend="give a run's id, or its directory")


def copy_program(run: RunDirectory, library: Path, recipe: Path) -> None:
    """The launcher and the recipe as they are now into the run directory, so that what ran can be read later."""
    ignore = shutil.ignore_patterns("__pycache__", "*.pyc", ".git")
    shutil.copytree(library, run.path / "lib", ignore=ignore)
    shutil.copytree(recipe, run.path / "recipe", ignore=ignore)


def write_whole(path: Path, content: str) -> None:
    """Write a file under a temporary name and rename it: a reader sees all of it or nothing. Mode 0600."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content.encode("utf-8", "surrogateescape"))
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).replace(path)
    except BaseException:
        with suppress(OSError):
            Path(temporary).unlink()
        raise


def _candidates(root: Path, name: str) -> Iterator[Path]:
    yield root / name
    for number in range(2, 10_000):
        yield root / f"{name}.{number}"


def _index() -> Path:
    """Links from run ids to run directories, so that an id is enough from any working directory."""
    return paths.state_dir() / "runs"


def _remember(path: Path) -> None:
    _index().mkdir(parents=True, exist_ok=True)
    link = _index() / path.name
    with suppress(FileNotFoundError):
        link.unlink()
    link.symlink_to(path)
