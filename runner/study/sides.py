"""A study as a side of ``compare``; its measured runs for ``export``, and the study itself for a bundle."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

from runner.core.errors import NotProvenError, UsageError
from runner.core.invocation import PROGRAM
from runner.core.text import instead
from runner.figures.bundle.making import StudyToBundle
from runner.figures.compare.compare import PointLaunches, Settings, Side
from runner.figures.compare.launches import MeasuredLaunch, measured_launch
from runner.jobs.directory import STUDY, RunDirectory
from runner.model.study import Arm
from runner.study.directory import StudyDirectory
from runner.study.gather import facts, figures

_ARM: Arm = "full"  # what is compared: training as it is


def chosen_settings(text: str) -> tuple[str, Settings]:
    """``STUDY:NAME=VALUE,...``: what names the study, and the settings whose points are meant; all without any.

    Raises:
        UsageError: what follows the colon is no setting.
    """
    if Path(text).exists() or ":" not in text:
        return text, ()
    name, _, rest = text.rpartition(":")
    pairs = tuple(each.partition("=") for each in rest.split(","))
    if not all(key and equals for key, equals, _ in pairs):
        raise UsageError(f'"{rest}" is no setting of a study', fix="write STUDY:NAME=VALUE, as --set of `scale` had it")
    return name, tuple((key, value) for key, _, value in pairs)


def side_of_study(study: StudyDirectory, name: str, chosen: Settings = ()) -> Side:
    """The measured launches of training as it is, by number of GPUs and by the settings that are not chosen.

    Raises:
        NotProvenError: no such launch is measured.
        UsageError: the study has no such setting.
    """
    known = {f"{key}={value}" for setting in study.study.settings for key, value in setting}
    for key, value in chosen:
        if f"{key}={value}" not in known:
            fix = instead(f"{key}={value}", known, f"it has {', '.join(sorted(known)) or 'none'}")
            raise UsageError(f"{study.path.name} has no setting {key}={value}", where=name, fix=fix)
    proven: dict[tuple[int, Settings], list[MeasuredLaunch]] = defaultdict(list)
    others: dict[tuple[int, Settings], int] = defaultdict(int)
    for each in facts(study).launches:
        launch = each.launch
        if launch.arm != _ARM or not set(chosen) <= set(launch.settings):
            continue
        point = launch.gpus, tuple(pair for pair in launch.settings if pair not in chosen)
        if each.state == "proven":
            proven[point].append(measured_launch(RunDirectory(Path(each.directory))))
        else:
            others[point] += 1
    if not proven:
        raise NotProvenError(
            f"no launch of {study.path.name} is measured",
            where=name,
            fix=f"`{PROGRAM} scale --resume {study.path.name}`",
        )
    return Side(name, {point: PointLaunches(tuple(found), others[point]) for point, found in proven.items()})


def measured_runs(study: StudyDirectory) -> dict[str, RunDirectory]:
    """The run by which each launch of a study is proven, by the launch's key, in the order of the launches.

    Raises:
        NotProvenError: none is.
    """
    launches = facts(study).launches
    found = {each.launch.key: RunDirectory(Path(each.directory)) for each in launches if each.state == "proven"}
    if not found:
        raise NotProvenError(
            f"no launch of {study.path.name} is measured", fix=f"`{PROGRAM} scale --resume {study.path.name}`"
        )
    return found


def to_bundle(study: StudyDirectory) -> StudyToBundle:
    """The study as a bundle takes it.

    Raises:
        NotProvenError: as ``measured_runs``.
    """
    return StudyToBundle((study.path / STUDY).read_bytes(), measured_runs(study), figures)
