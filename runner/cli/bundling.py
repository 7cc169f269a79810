"""A bundle of what a user names, for ``export`` and ``report``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from runner.cli.options import by_shell

if TYPE_CHECKING:
    from runner.jobs.directory import RunDirectory
    from runner.model.bundle import MadeBundle
    from runner.study.directory import StudyDirectory

KEY = click.option(
    "--sign",
    "key",
    type=click.Path(path_type=Path),
    metavar="KEY",
    shell_complete=by_shell("files"),
    help="Sign the bundle with this ssh key of yours.",
)


def bundle_of(subjects: Sequence[RunDirectory | StudyDirectory], file: Path, key: Path | None) -> MadeBundle:
    """A bundle of these runs; of a study alone with its table, else a study stands for its measured runs.

    Raises:
        NotProvenError: one is not measured.
        UsageError: as ``runner.bundle.making.make``.
    """
    from runner.bundle.making import make
    from runner.jobs.directory import RunDirectory
    from runner.study.sides import to_bundle

    runs = [run for subject in subjects for run in runs_of(subject)]
    alone = subjects[0] if len(subjects) == 1 else None
    study = None if alone is None or isinstance(alone, RunDirectory) else to_bundle(alone)
    return make(runs, file, key, study)


def runs_of(subject: RunDirectory | StudyDirectory) -> Sequence[RunDirectory]:
    """A run, or the measured runs of a study."""
    from runner.jobs.directory import RunDirectory
    from runner.study.sides import measured_runs

    return [subject] if isinstance(subject, RunDirectory) else tuple(measured_runs(subject).values())
