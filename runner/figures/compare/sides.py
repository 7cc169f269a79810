"""What a user names as a side of ``compare``: a run, or several with commas between them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from runner.core.errors import UsageError
from runner.figures.compare.compare import PointLaunches, Side
from runner.figures.compare.launches import measured_launch
from runner.jobs.directory import RunDirectory
from runner.jobs.lookup import find


def runs_of(text: str) -> tuple[RunDirectory, ...]:
    """The runs that a user means: each an id, a name, the beginning of one, a job's id or a directory.

    Raises:
        UsageError: one of them is none, or is there twice.
    """
    return runs_named([text] if Path(text).exists() else [name for name in text.split(",") if name])


def runs_named(names: Sequence[str]) -> tuple[RunDirectory, ...]:
    """The runs of these names, one each.

    Raises:
        UsageError: as ``runs_of``.
    """
    if not names:
        raise UsageError("no run is named", fix="give a run, or several with commas between them")
    runs = tuple(find(name) for name in names)
    ids = [run.run_id for run in runs]
    twice = next((run_id for run_id in ids if ids.count(run_id) > 1), "")
    if twice:
        raise UsageError(f"{twice} is named twice", fix="name each run once")
    return runs


def side_of(text: str) -> Side:
    """The side of these runs.

    Raises:
        UsageError: as ``runs_of``. NotProvenError: one is not measured.
    """
    return side_of_runs(text, runs_of(text))


def side_of_runs(name: str, runs: Sequence[RunDirectory]) -> Side:
    """The side of these runs, one at least.

    Raises:
        NotProvenError: one is not measured.
    """
    launches = tuple(map(measured_launch, runs))
    return Side(name, {(launches[0].gpus, ()): PointLaunches(launches)})
