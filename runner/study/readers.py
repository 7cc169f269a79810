"""What runs and studies are for a comparison, an export, a report and a bundle."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import chain
from pathlib import Path

import msgspec

from runner.core.errors import NotProvenError, RunnerError, UsageError
from runner.core.hide import first_secret
from runner.core.text import counted, instead
from runner.figures.bundle.making import StudyToBundle, make
from runner.figures.compare.compare import Side
from runner.figures.compare.launches import MeasuredLaunch, PointLaunches, measured_launch
from runner.figures.export import exported_run
from runner.jobs.campaign import gaps_of
from runner.jobs.comparison import check_launches, identities
from runner.jobs.directory import LOG, STUDY, Run, Studies, index
from runner.jobs.life import Standing, Warn, standing
from runner.jobs.lookup import find, places_of
from runner.model.figure import Doubt, OfStudy
from runner.model.output import ExportedRun, MadeBundle
from runner.model.report import Report
from runner.model.study import Setting, StudyFacts
from runner.model.verdict import Verdict
from runner.planning.options import tells_runs_apart
from runner.study.directory import StudyDirectory, Subject, find_subject, find_sweep, read
from runner.study.gather import facts, figures, look, without_figure
from runner.study.timeline import timelines

_OF_A_SWEEP = "put back what is missing; of a sweep that was copied from another machine, bundle it there"
_Looks = dict[Path, StudyFacts]  # at studies, by their directories


def side(text: str) -> Side:
    """What a user names as a side of a comparison: a run (an id, a name, the beginning of one, a job's id or a
    directory), several with commas between them, a sweep, or a study with or without settings
    (``STUDY:NAME=VALUE,...``): the measured launches of training as it is, by number of GPUs and by the settings that
    are not chosen.

    Raises:
        UsageError: it is none of these, a run is there twice, or the study has no such setting.
        NotProvenError: a run is not measured, or no such launch.
    """
    name, chosen = _chosen_settings(text)
    if "," in name and not _is_directory(name):
        return side_of_runs([each for each in text.split(",") if each])
    if (sweep := find_sweep(name)) is not None:
        return _side_of_runs(text, sweep.submitted, len(gaps_of(sweep.path)))
    study = find_subject(name)
    if isinstance(study, Run):
        if chosen:
            raise UsageError(f"{study.run_id} is a run, and only a study has settings", where=text)
        return _side_of_runs(text, [study])
    known = {f"{key}={value}" for setting in study.study.settings for key, value in setting}
    for key, value in chosen:
        if f"{key}={value}" not in known:
            fix = instead(f"{key}={value}", known, f"it has {', '.join(sorted(known)) or 'none'}")
            raise UsageError(f"{study.path.name} has no setting {key}={value}", where=text, fix=fix)
    proven: dict[tuple[int, Setting], list[MeasuredLaunch]] = defaultdict(list)
    others: dict[tuple[int, Setting], int] = defaultdict(int)
    now = facts(study)
    seen = {study.path: OfStudy(now.gaps, now.demonstration)}
    for each in now.launches:
        launch = each.launch
        if launch.arm != "full" or not set(chosen) <= set(launch.settings):
            continue
        point = launch.gpus, _left(launch.settings, chosen)
        if each.state == "proven":
            proven[point].append(measured_launch(Run(Path(each.directory)), seen))
        else:
            others[point] += 1
    if not proven:
        raise _nothing_measured(study, text)
    unequal = _unequal(now, chosen)
    points = {at: PointLaunches(tuple(each), others[at], unequal.get(at, ())) for at, each in proven.items()}
    missing = {at: wanted for at, wanted in others.items() if at not in points}
    return Side(text, points, missing, study.study.strong)


def side_of_runs(names: Sequence[str]) -> Side:
    """The side of the runs of these names, one each.

    Raises:
        UsageError: one of them is none, or is there twice. NotProvenError: one is not measured.
    """
    runs = tuple(map(find, names))
    ids = [run.run_id for run in runs]
    if twice := next((run_id for run_id in ids if ids.count(run_id) > 1), ""):
        raise UsageError(f"{twice} is named twice", fix="name each run once")
    return _side_of_runs(",".join(names), runs)


def _side_of_runs(name: str, runs: Sequence[Run], lost: int = 0) -> Side:
    """``lost``: how many further ones there were, which may have been slow."""
    if not runs:
        raise UsageError("no run is named, or none was submitted", where=name, fix="give a run, or several")
    seen = of_their_studies(runs, {})
    launches = tuple(measured_launch(run, seen) for run in runs)
    return Side(name, {(launches[0].gpus, ()): PointLaunches(launches, lost)})


def _unequal(now: StudyFacts, chosen: Setting) -> dict[tuple[int, Setting], tuple[Doubt, ...]]:
    """What the launches of each point do not have in common."""
    return {
        (each.gpus, _left(each.settings, chosen)): each.unequal
        for each in now.points
        if each.arm == "full" and set(chosen) <= set(each.settings)
    }


def _left(settings: Setting, chosen: Setting) -> Setting:
    """Those that are not chosen, by name: which was given first makes no other point."""
    return tuple(sorted(pair for pair in settings if pair not in chosen))


def _chosen_settings(text: str) -> tuple[str, Setting]:
    """What names the study, and the settings whose points are meant; all without any."""
    if ":" not in text or _is_directory(text):
        return text, ()
    name, _, rest = text.rpartition(":")
    pairs = tuple(each.partition("=") for each in rest.split(","))
    if not all(key and equals for key, equals, _ in pairs):
        raise UsageError(f'"{rest}" is no setting of a study', fix="write STUDY:NAME=VALUE, as --set of `scale` had it")
    return name, tuple((key, value) for key, _, value in pairs)


def _is_directory(name: str) -> bool:
    return any(path.is_dir() for path in places_of(name, index()))


def exported_of(subjects: Sequence[Subject]) -> tuple[ExportedRun, ...]:
    """These runs, and the measured ones of these studies, each once. Raises as ``exported_run``, and NotProvenError: a
    study has none.
    """
    looks: _Looks = {}
    every = [run for subject in subjects for run in _measured_runs(subject, looks).values()]
    seen, each = of_their_studies(every, looks), {run.path.resolve(): run for run in every}
    check_launches(identities(each.values()))
    return tuple(exported_run(run, seen) for run in each.values())


def bundle_of(subjects: Sequence[Subject], file: Path, key: Path | None) -> MadeBundle:
    """A bundle of these runs; of a study alone with its table, else a study stands for its measured runs."""
    looks: _Looks = {}
    alone = subjects[0]
    if len(subjects) == 1 and not isinstance(alone, Run):
        _check_shown([alone])
        seen = look(alone)
        measured = _proven_runs(alone, now := facts(alone, seen))
        log = Run(alone.path).content(LOG) or None
        question = Run(alone.path).content(STUDY)
        study = StudyToBundle(question, measured, figures, now.gaps, log, without_figure(seen))
        return make(list(measured.values()), file, key, study)
    every = (run for subject in subjects for run in _measured_runs(subject, looks).values())
    runs = [*{run.path.resolve(): run for run in every}.values()]
    _check_shown(runs)
    for run in runs:
        if why := _said_by_its_study(run, looks):
            fix = "bundle the study alone: its bundle says so" if run.launched_as else _OF_A_SWEEP
            raise UsageError(f"{run.run_id}: {why}", fix=fix)
    return make(runs, file, key, None)


def report_of(subjects: Sequence[Subject], warn: Warn) -> tuple[Report, str]:
    """The report on runs, or on a study, and a name for it; runs that have ended are judged first."""
    from runner.figures.report.gather import runs_report, study_report

    runs = [each for each in subjects if isinstance(each, Run)]
    studies = [each for each in subjects if not isinstance(each, Run)]
    _check_shown(subjects)
    if not studies:
        more = f"-and-{len(runs) - 1}-more" if len(runs) > 1 else ""
        now = [(run, _state(run, warn)) for run in runs]  # which judges them
        check_launches(identities(runs))
        report = msgspec.structs.replace(runs_report(now, of_their_studies(runs, {})), chains=tuple(timelines(runs)))
        return report, f"{runs[0].run_id}{more}"
    if len(subjects) > 1:
        others = f"{len(studies)} studies" if not runs else f"a study and {counted(len(runs), 'run')}"
        raise UsageError(
            f"a report is on one study or on runs, and these are {others}",
            fix="report each study alone; `compare` holds two against each other",
        )
    return study_report(facts(studies[0])), studies[0].path.name


def _check_shown(subjects: Iterable[Subject]) -> None:
    """Refuse what an older version took: runs that secrets tell from one another. Raises UsageError."""
    for each in subjects:
        study, swept = None, dict[str, str]()
        if not isinstance(each, Run):
            study = each
        elif (own := each.launched_as) is not None:
            study = read(own.parents[2])
        else:
            swept = each.swept
        if name := first_secret(chain(*(study.study.settings if study is not None else ()), swept.items())):
            raise tells_runs_apart(name, each.path.name)


def _state(run: Run, warn: Warn) -> Verdict | str:
    """The run's verdict, or the state of one that has none."""
    try:
        now = standing(run)
    except RunnerError as error:
        warn(f"{run.run_id}: {error.what}")
        return "unknown"
    if not isinstance(now, Standing):
        return now
    return now.progress.state.phase if now.progress.state else ""


def of_their_studies(runs: Iterable[Run], looks: _Looks) -> Studies:
    """What the studies say that these runs are launches of, wherever a run lies now; of those that can be read."""
    for run in runs:
        if (own := run.launched_as) is not None:
            _facts_of(own.parents[2], looks)
    return {path: now.of_figures for path, now in looks.items()}


def _said_by_its_study(run: Run, looks: _Looks) -> str:
    """What must be said with a run's figure, and its records do not show; empty for nothing."""
    if (own := run.launched_as) is None:
        gaps = run.of_study().gaps
        return f"of a sweep with a gap ({gaps[0]})" if gaps else ""
    if (now := _facts_of(own.parents[2], looks)) is None:
        return "its study cannot be read"
    if now.gaps:
        return f"of a study with a gap ({now.gaps[0]})"
    of, key = now.of_figures, own.parent.name
    if lacks := of.lacks.get(key):
        return f"of a point of its study that lacks {counted(lacks, 'proven launch')}"
    if unequal := of.unequal.get(key):
        return f"of a point of its study with a doubt ({unequal[0].words})"
    verdict, label = run.verdict, now.demonstration
    return f"of a study that is no claim ({label})" if label and verdict and not verdict.demonstration else ""


def _facts_of(path: Path, looks: _Looks) -> StudyFacts | None:
    """Of the study in that directory, looked at once; None where it cannot be read."""
    if path not in looks and (study := read(path)) is not None:
        looks[path] = facts(study)
    return looks.get(path)


def _measured_runs(subject: Subject, looks: _Looks) -> dict[str, Run]:
    """The run by which each launch of a study is proven, by the launch's key, in the order of the launches; a run
    itself. ``looks`` takes the study.
    """
    if isinstance(subject, Run):
        return {subject.run_id: subject}
    now = looks[subject.path] = facts(subject)
    return _proven_runs(subject, now)


def _proven_runs(study: StudyDirectory, now: StudyFacts) -> dict[str, Run]:
    """Of each proven launch, by its key. Raises NotProvenError: there is none."""
    proven = {each.launch.key: Run(Path(each.directory)) for each in now.launches if each.state == "proven"}
    if not proven:
        raise _nothing_measured(study)
    return proven


def _nothing_measured(study: StudyDirectory, where: str = "") -> NotProvenError:
    name = study.path.name
    return NotProvenError(f"no launch of {name} is measured", where=where, fix=facts(study).next_step)
