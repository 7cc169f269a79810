"""Which pictures a report has, in the order in which people look: throughput per GPU, efficiency, the slow node, the
cause. Each says in words what it shows. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import islice

from runner.core.columns import Table, for_page
from runner.core.text import first_of, gpus_text, percent, rate, seconds
from runner.figures.report.charts import heat_map, losses, node_cells
from runner.figures.report.curves import Axes, Reference, Series, curves, time_line
from runner.figures.report.picture import Markup, Picture
from runner.figures.report.summary import largest_point
from runner.figures.tables import (
    MOST_SERIES,
    Ranked,
    all_settings,
    curve,
    interval,
    loss_columns,
    losses_of,
    main_settings,
    of_each,
    point_columns,
    rank_columns,
    run_columns,
    settings_text,
    units_of,
)
from runner.model.report import Report, Row, RunReport
from runner.model.study import Estimate, PointFacts, StudyFacts

_MOST_TIME_LINES = 4
MOST_ROWS = 200  # of a table on the page; the files have all


def gallery(report: Report) -> Iterator[Picture]:
    """Every picture that the report has figures for: as many of the last kind as fill the page's two columns."""
    others = list(_without_time_lines(report))
    yield from others
    yield from islice(_time_lines(report), _MOST_TIME_LINES - len(others) % 2)


def _without_time_lines(report: Report) -> Iterator[Picture]:
    study = report.study
    if study is not None and largest_point(study) is not None:
        yield from _scaling(study, report)
    else:
        yield from _of_runs(report)
    yield from _heat_maps(report)
    if study is not None:
        yield from _losses(study, report)
        yield from _whole(study, report)


def ideal_each(points: Sequence[PointFacts]) -> float | None:
    """What each GPU would give without any loss: by the base that the efficiencies are made from."""
    for point in points:
        if point.images_per_s and point.efficiency_of_one and point.efficiency_of_one.value > 0.0:
            return point.images_per_s.value / point.gpus / point.efficiency_of_one.value
    return None


def _name(settings: tuple[tuple[str, str], ...]) -> str:
    return settings_text(settings) or "measured"


def _scaling(study: StudyFacts, report: Report) -> Iterator[Picture]:
    settings = main_settings(study)
    by_setting = {each: curve(study.points, each) for each in settings}
    left_out = len(all_settings(study.points)) - len(settings)
    more = f" {left_out} more settings are in the table." if left_out > 0 else ""
    series, highest = [], 0.0
    for each, points in by_setting.items():
        dots = [
            (row.gpus, row.per_gpu)
            for row in report.rows
            if row.per_gpu is not None and row.settings == each and row.arm == "full"
        ]
        estimates = tuple((point.gpus, one) for point in points if (one := of_each(point)) is not None)
        series.append(Series(_name(each), estimates, tuple(dots)))
        highest = max([highest, *(one.high or one.value for _, one in estimates), *(value for _, value in dots)])
    ideal = ideal_each(by_setting[settings[0]])
    sizes = sorted({size for one in series for size, _ in one.points})
    references = []
    if ideal is not None and len(settings) == 1:
        references.append(Reference("ideal", "ideal", tuple((size, (ideal,) * 3) for size in sizes)))
        highest = max(highest, ideal)
    if report.expected:
        ranges = [(each.gpus, each.expected) for each in report.expected]
        parts = tuple((gpus, (of.low / gpus, of.value / gpus, of.high / gpus)) for gpus, of in ranges)
        references.append(Reference("expected", "expected", parts))
        highest = max([highest, *(high for _, (_, _, high) in parts)])
    point = largest_point(study)
    assert point is not None
    each_now = of_each(point)
    assert each_now is not None
    sure = interval(each_now, rate)
    says = f"{rate(each_now.value)} {report.unit}/s per GPU at {gpus_text(point.gpus)}" + (
        f" (95 %: {sure})." if sure else "."
    )
    title = "Throughput per GPU"
    axes = Axes(f"{report.unit}/s per GPU", rate, 0.0, 1.12 * highest)
    yield Picture(
        "per-gpu",
        title,
        says + more,
        curves(
            "per-gpu", title, f"Curve over the number of GPUs. {says}", axes, series, references, report.demonstration
        ),
        _points_table(study, report.unit),
    )
    yield from _efficiency(study, report, by_setting)


def _efficiency(
    study: StudyFacts, report: Report, by_setting: dict[tuple[tuple[str, str], ...], list[PointFacts]]
) -> Iterator[Picture]:
    series = []
    for settings, points in by_setting.items():
        many = len(by_setting) > 1
        for base, of in (("of one GPU alone", "efficiency_of_one"), ("of uncoupled GPUs", "efficiency_of_uncoupled")):
            own = tuple((point.gpus, one) for point in points if (one := getattr(point, of)) is not None)
            if own and (not many or of == "efficiency_of_one"):
                series.append(Series(_name(settings) if many else base, own))
    if not series:
        return
    values = [value for each in series for _, one in each.points for value in (one.value, one.low, one.high) if value]
    expected = expected_efficiency(report, study)
    values += [value for _, limits in expected for value in limits]
    low = max(0.0, math.floor(20 * (min(values) - 0.02)) / 20)
    high = max(1.0, *values) + 0.02
    sizes = sorted({size for each in series for size, _ in each.points})
    references = [Reference("ideal", "ideal", tuple((size, (1.0, 1.0, 1.0)) for size in sizes))]
    references += [Reference("expected", "expected", expected)] if expected else []
    last = series[0].points[-1]
    sure = interval(last[1])
    says = f"{percent(last[1].value)} at {gpus_text(last[0])}" + (
        f" (95 %: {sure})" if sure else ", without an interval"
    )
    says += f". The axis begins at {percent(low, 0)}." if low > 0.0 else "."
    title = "Strong-scaling efficiency" if study.strong else "Weak-scaling efficiency"
    axes = Axes("efficiency", lambda value: percent(value, 0 if value * 100 % 1 < 1e-9 else 1), low, high)
    drawn = curves(
        "efficiency", title, f"Curve over the number of GPUs. {says}", axes, series, references, report.demonstration
    )
    yield Picture("efficiency", title, says, drawn, _points_table(study, report.unit))


def expected_efficiency(report: Report, study: StudyFacts) -> tuple[tuple[int, tuple[float, float, float]], ...]:
    """The expected ranges as shares of the study's own ideal; empty without one."""
    ideal = ideal_each(curve(study.points, main_settings(study)[0]))
    if ideal is None:
        return ()
    ranges = [(each.gpus, each.expected) for each in report.expected]
    share = 1.0 / ideal
    return tuple(
        (gpus, (of.low * share / gpus, of.value * share / gpus, of.high * share / gpus)) for gpus, of in ranges
    )


def _whole(study: StudyFacts, report: Report) -> Iterator[Picture]:
    """Throughput of the whole world, both axes by factors."""
    settings = main_settings(study)
    if not settings:
        return
    series = []
    for each in settings:
        estimates = tuple(
            (point.gpus, point.images_per_s) for point in curve(study.points, each) if point.images_per_s is not None
        )
        series.append(Series(_name(each), estimates))
    values = [one.value for each in series for _, one in each.points]
    sizes = sorted({size for each in series for size, _ in each.points})
    ideal = ideal_each(curve(study.points, settings[0]))
    references = []
    if ideal is not None:
        references = [Reference("ideal", "ideal", tuple((size, (ideal * size,) * 3) for size in sizes))]
        values += [ideal * size for size in sizes]
    last, one = series[0].points[-1]
    says = f"{rate(one.value)} {report.unit}/s on {gpus_text(last)} together."
    title = "Throughput of all GPUs"
    axes = Axes(f"{report.unit}/s, by factors", rate, 0.55 * min(values), 1.5 * max(values), logarithmic=True)
    drawn = curves(
        "whole", title, f"Curve over the number of GPUs. {says}", axes, series, references, report.demonstration
    )
    yield Picture("whole", title, says, drawn, _points_table(study, report.unit))


def _points_table(study: StudyFacts, unit: str) -> Table:
    return for_page(point_columns(unit), study.points[:MOST_ROWS])


def _of_runs(report: Report) -> Iterator[Picture]:
    """Throughput per GPU of single runs, each with the precision of its run: a picture for each thing that they count,
    in it a curve for each kind of run.
    """
    rows = [row for row in report.rows if row.per_gpu is not None and row.arm in ("", "full")]
    units = units_of(rows)
    for number, unit in enumerate(units):
        own = [row for row in rows if row.unit == unit]
        key = f"per-gpu-{number}" if number else "per-gpu"
        yield _of_unit(key, own, report.demonstration, f", {unit}" if len(units) > 1 else "")


def _of_unit(key: str, rows: Sequence[Row], demonstration: str, more: str) -> Picture:
    """Of runs that count the same."""
    kinds = main_kinds(rows)
    series, values, is_single = [], [], True
    for kind in kinds:
        own = [row for row in rows if row.settings == kind]
        sizes = sorted({row.gpus for row in own})
        # Of several runs at a size the first stands in the curve; each is a dot.
        points = []
        for size in sizes:
            row = next(row for row in own if row.gpus == size)
            low, high = ((None if value is None else value / size) for value in (row.low, row.high))
            points.append((size, Estimate(row.per_gpu or 0.0, low, high)))
        values += [value for _, one in points for value in (one.value, one.high or 0.0)]
        values += [row.per_gpu or 0.0 for row in own]
        dots = tuple((row.gpus, row.per_gpu or 0.0) for row in own)
        is_single = is_single and len(own) == len(sizes)
        name = settings_text(kind) or ("run" if is_single else "first run of a size")
        series.append(Series(name, tuple(points), () if len(own) == len(sizes) else dots))
    best = max((row for row in rows if row.settings in kinds), key=lambda row: (row.gpus, row.per_gpu or 0.0))
    of = f" ({settings_text(best.settings)})" if best.settings else ""
    says = f"{rate(best.per_gpu or 0.0)} {best.unit}/s per GPU at {gpus_text(best.gpus)}{of}. "
    says += "Limits are each run's own precision."
    left_out = len({row.settings for row in rows}) - len(kinds)
    if len(kinds) > 1:
        says += " Runs of different kinds are joined by no line, and their rates are of different work."
    says += f" {left_out} more kinds of run are in the table." if left_out else ""
    title = f"Throughput per GPU{more}"
    axes = Axes(f"{best.unit}/s per GPU", rate, 0.0, 1.12 * max(values))
    drawn = curves(key, title, f"Runs over the number of GPUs. {says}", axes, series, [], demonstration)
    return Picture(key, title, says, drawn, rows_table(rows))


def main_kinds(rows: Sequence[Row]) -> list[tuple[tuple[str, str], ...]]:
    """The kinds of single runs that are drawn: those with the largest sizes."""
    largest: dict[tuple[tuple[str, str], ...], int] = {}
    for row in rows:
        largest[row.settings] = max(row.gpus, largest.get(row.settings, 0))
    return sorted(largest, key=lambda kind: -largest[kind])[:MOST_SERIES]


def rows_table(rows: Sequence[Row]) -> Table:
    """Runs, as many as a page can show."""
    return for_page(run_columns(rows), rows[:MOST_ROWS])


def _heat_maps(report: Report) -> Iterator[Picture]:
    """The run with most ranks, and another one only where it has a slow node that the first has not."""
    known = [each for each in report.detailed if len(each.ranks) > 1]
    known.sort(key=lambda each: -each.row.gpus)
    shown = known[:1] + [each for each in known[1:] if set(each.slow_nodes) - set(known[0].slow_nodes)][:1]
    for number, each in enumerate(shown):
        key = f"ranks{number}" if number else "ranks"
        title = f"Compute time by rank, {gpus_text(each.row.gpus)}"
        says = _slow_sentence(each)
        drawn = heat_map(key, title, f"Heat map of ranks by node. {says}", each.ranks, report.demonstration)
        yield Picture(key, title, says, drawn, _ranks_table(each))


def _slow_sentence(each: RunReport) -> str:
    names = [f"node {node} by {percent(excess)}" for node, excess in each.slow_nodes.items()]
    names += [f"rank {rank} by {percent(excess)}" for rank, excess in each.slow_ranks.items()]
    if names:
        cost = (
            f" Without {'it' if len(names) == 1 else 'them'} a step takes up to {percent(each.removable)} less."
            if each.removable > 0.0
            else ""
        )
        if each.row.demonstration:
            return f"What stands out in this demonstration, which names none as slow: {first_of(names, 3)}."
        return f"Slow: {first_of(names, 3)}.{cost}"
    largest = max(rank.relative for rank in each.ranks)
    if each.cannot_tell:
        return f"The slowest rank is {percent(largest)} slower; healthy ranks can differ as much, so none is named."
    return f"No slow rank: the slowest is {percent(largest)} slower than the typical rank."


def _ranks_table(each: RunReport) -> Table:
    """Ranks, or nodes where there are many."""
    name, slow = ("stands out", "yes") if each.row.demonstration else ("named", "slow")
    if len(each.ranks) <= MOST_ROWS:
        columns = rank_columns(demonstration=bool(each.row.demonstration))
        return for_page(columns, [Ranked(each, rank) for rank in each.ranks])
    cells = node_cells(each.ranks, MOST_ROWS)
    shown = tuple((cell.name, percent(cell.excess), slow if cell.slow else "") for cell in cells)
    return Table(("node", "its slowest rank over the typical one", name), shown)


def _losses(study: StudyFacts, report: Report) -> Iterator[Picture]:
    known = sorted((loss for loss in study.losses if loss.rows), key=lambda loss: (loss.gpus, loss.settings))
    if not known:
        return
    last = known[-1]
    worst = max(last.rows, key=lambda row: row.loss.value)
    total = sum(row.loss.value for row in last.rows)
    says = f"At {gpus_text(last.gpus)} {percent(total)} of the ideal is lost"
    is_sure = worst.loss.low is None or worst.loss.low > 0.0
    if worst.loss.value > 0.0:
        about = "" if is_sure else f"; 95 %: {interval(worst.loss)}"
        says += f"; the largest part is {worst.name} ({percent(worst.loss.value)}{about})"
    says += "."
    title = "Where the rest goes"
    drawn = losses("loss", title, f"Stacked bars over the number of GPUs. {says}", known, report.demonstration)
    yield Picture("loss", title, says, drawn, for_page(loss_columns(), losses_of(known)[:MOST_ROWS]))


def _time_lines(report: Report) -> Iterator[Picture]:
    for number, each in enumerate(report.detailed[:_MOST_TIME_LINES]):
        steps = each.steps
        if steps is None or not steps.at_s:
            continue
        key = f"steps{number}"
        title = f"Step times, {gpus_text(each.row.gpus)}"
        middle = sorted(steps.middle_s)[len(steps.middle_s) // 2]
        spread = f"from {seconds(min(steps.low_s))} to {seconds(max(steps.high_s))}"
        says = f"Run {each.row.run}: a step takes {seconds(middle)}, {spread} by groups of steps."
        drawn: Markup = time_line(key, title, f"Line over time. {says}", steps, report.demonstration)
        yield Picture(key, title, says, drawn, _steps_table(each))


def _steps_table(each: RunReport) -> Table:
    """Some twenty points of the line."""
    steps = each.steps
    assert steps is not None
    every = max(len(steps.at_s) // 20, 1)
    rows = tuple(
        (f"{steps.at_s[at]:.1f}", seconds(steps.middle_s[at]), seconds(steps.low_s[at]), seconds(steps.high_s[at]))
        for at in range(0, len(steps.at_s), every)
    )
    return Table(("seconds", "median step", "least", "greatest"), rows)
