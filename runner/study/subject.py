"""What a run and a study are for a comparison, a report and a bundle."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from runner.core.errors import RunnerError, UsageError
from runner.core.text import counted
from runner.figures.bundle.making import make
from runner.figures.compare.compare import Side
from runner.figures.compare.sides import runs_named, side_of, side_of_runs
from runner.jobs.directory import RunDirectory
from runner.jobs.life import Standing, Warn, standing
from runner.model.bundle import MadeBundle
from runner.model.report import Report
from runner.study.lookup import Subject, find_subject
from runner.study.sides import chosen_settings, measured_runs, side_of_study, to_bundle


def side(text: str) -> Side:
    """What a user names as a side of a comparison: a run, several with commas between them, or a study with or without
    settings.

    Raises:
        UsageError: it is none of these. NotProvenError: a run is not measured.
    """
    name, chosen = chosen_settings(text)
    if "," in name and not Path(name).exists():
        return side_of(text)
    subject = find_subject(name)
    if not isinstance(subject, RunDirectory):
        return side_of_study(subject, text, chosen)
    if chosen:
        raise UsageError(f"{subject.run_id} is a run, and only a study has settings", where=text)
    return side_of(text)


def side_of_each(names: Sequence[str]) -> Side:
    """The launches of these names as one side.

    Raises:
        UsageError: none is named, or one is no run. NotProvenError: one is not measured.
    """
    return side_of_runs(", ".join(names), runs_named(names))


def runs_of(subject: Subject) -> Sequence[RunDirectory]:
    """A run, or the measured runs of a study."""
    return [subject] if isinstance(subject, RunDirectory) else tuple(measured_runs(subject).values())


def bundle_of(subjects: Sequence[Subject], file: Path, key: Path | None) -> MadeBundle:
    """A bundle of these runs; of a study alone with its table, else a study stands for its measured runs.

    Raises:
        NotProvenError: one is not measured.
        UsageError: as ``runner.figures.bundle.making.make``.
    """
    runs = [run for subject in subjects for run in runs_of(subject)]
    alone = subjects[0] if len(subjects) == 1 else None
    study = None if alone is None or isinstance(alone, RunDirectory) else to_bundle(alone)
    return make(runs, file, key, study)


def report_of(subjects: Sequence[Subject], warn: Warn) -> tuple[Report, str]:
    """The report on runs, or on a study, and a name for it; runs that have ended are judged first.

    Args:
        warn: called with why the state of a run is unknown.

    Raises:
        UsageError: these cannot be in one report.
    """
    from runner.figures.report.gather import of_runs, of_study
    from runner.study.gather import facts

    runs = [each for each in subjects if isinstance(each, RunDirectory)]
    studies = [each for each in subjects if not isinstance(each, RunDirectory)]
    if not studies:
        more = f"-and-{len(runs) - 1}-more" if len(runs) > 1 else ""
        return of_runs([(run, _state(run, warn)) for run in runs]), f"{runs[0].run_id}{more}"
    if len(subjects) > 1:
        others = f"{len(studies)} studies" if not runs else f"a study and {counted(len(runs), 'run')}"
        raise UsageError(
            f"a report is on one study or on runs, and these are {others}",
            fix="report each study alone; `compare` holds two against each other",
        )
    return of_study(facts(studies[0])), studies[0].path.name


def _state(run: RunDirectory, warn: Warn) -> str:
    """The state of a run that has no verdict; empty for one that has."""
    try:
        now = standing(run)
    except RunnerError as error:
        warn(f"{run.run_id}: {error.what}")
        return "unknown"
    return now.progress.state.phase if isinstance(now, Standing) and now.progress.state else ""
