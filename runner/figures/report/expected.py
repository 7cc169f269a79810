"""What a study's points should reach by the cost model, against what was measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from runner.core.errors import RunnerError
from runner.core.text import counted
from runner.expectation.alarm import compare
from runner.figures.tables import curve, main_settings
from runner.jobs import expected as inputs
from runner.jobs.directory import RunDirectory
from runner.jobs.expected import OneGpu
from runner.model.expectation import Comparison
from runner.model.report import Row, RunReport
from runner.model.study import BASES, PointFacts, StudyFacts
from runner.sites.loader import read_site


def comparisons(
    study: StudyFacts, rows: Sequence[Row], details: Sequence[RunReport]
) -> tuple[tuple[Comparison, ...], str]:
    """Each point of the first setting against its expected range, and an empty text; or none, and why.

    The rate of one GPU is the study's own; without a proven run of one GPU, a published one.
    """
    settings = main_settings(study)
    if not settings:
        return (), "no point has a figure"
    if study.demonstration:
        return (), f"nothing is expected of a demonstration ({study.demonstration})"
    if study.strong:
        return (), "strong scaling: with another batch on each size, one GPU's rate says nothing of the others"
    points = curve(study.points, settings[0])
    try:
        one = _one_gpu(study, settings[0], rows)
        wanted = settings[0] if one is None else inputs.with_settings(one, settings[0])
        sizes = [point.gpus for point in points]
        answer = inputs.expect(read_site(study.site), study.recipe, wanted, sizes, one)
    except (RunnerError, OSError) as error:
        return (), getattr(error, "what", "") or str(error)
    signs: Mapping[int, RunReport] = {
        each.row.gpus: each for each in reversed(details) if each.row.settings == settings[0]
    }
    return tuple(
        compare(place, point.images_per_s, signs[point.gpus].signs if point.gpus in signs else None)
        for place, point in zip(answer.points, points, strict=True)
        if point.images_per_s is not None
    ), ""


def _one_gpu(study: StudyFacts, settings: tuple[tuple[str, str], ...], rows: Sequence[Row]) -> OneGpu | None:
    """The study's rate of one GPU, with its interval over launches; None where it has none."""
    alone = [row for row in rows if row.gpus == 1 and row.state == "proven" and row.settings == settings]
    base = next((point for arm in BASES if (point := _point(study, settings, arm)) is not None), None)
    if not alone or base is None or base.images_per_s is None:
        return None
    run = inputs.one_gpu_of(RunDirectory(Path(alone[0].directory)))
    rate = base.images_per_s
    low, high = (rate.value if value is None else value for value in (rate.low, rate.high))
    return OneGpu(
        rate.value,
        low,
        high,
        f"measured by {counted(base.proven, 'launch')} of the study {study.study}",
        run.settings,
    )


def _point(study: StudyFacts, settings: tuple[tuple[str, str], ...], arm: str) -> PointFacts | None:
    return next((point for point in curve(study.points, settings, arm) if point.gpus == 1), None)
