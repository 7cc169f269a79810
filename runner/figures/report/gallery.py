"""Which pictures a report has, in the order in which people look: throughput per GPU, efficiency, the slow node, the
cause. Each says in words what it shows. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice

from runner.core.columns import Table, for_page
from runner.core.text import efficiency, first_of, gpus_text, percent, point_text, rate, seconds, settings_text
from runner.figures import tables
from runner.figures.report.charts import heat_map, losses, node_cells
from runner.figures.report.curves import Axes, Reference, Series, curves, time_line
from runner.figures.report.picture import Drawing, Picture, svg
from runner.figures.report.summary import chosen, fastest_of, largest_point
from runner.model.report import Report, Row, RunReport, StepTimes
from runner.model.study import Estimate, PointFacts, Setting, StudyFacts

_MOST_TIME_LINES = 4
MOST_ROWS = 200  # of a table on the page; the files have all
_CURVE = "Curve over the number of GPUs."


def gallery(report: Report) -> Iterator[Picture]:
    """Every picture that the report has figures for: as many of the last kind as fill the page's two columns."""
    others = list(_without_time_lines(report))
    yield from others
    yield from islice(_time_lines(report), _MOST_TIME_LINES - len(others) % 2)


def _without_time_lines(report: Report) -> Iterator[Picture]:
    study = report.study
    by_setting = {}
    if study is not None:
        by_setting = {settings: tables.curve(study.points, settings) for settings in tables.main_settings(study)}
    if study is not None and by_setting:
        yield from _scaling(study, report, by_setting)
    else:
        yield from _of_runs(report)
    yield from _heat_maps(report)
    if study is not None:
        yield from _losses(study, report)
    if study is not None and by_setting:
        yield _whole(study, report, by_setting)


def _picture(
    report: Report, key: str, title: str, says: str, what: str, drawing: Drawing, table: Table, more: str = ""
) -> Picture:
    drawn = svg(key, title, f"{what} {says}", drawing, report.demonstration)
    return Picture(key, title, f"{says}{more}", drawn, table)


def _ideal_each(points: Sequence[PointFacts]) -> float | None:
    """What each GPU would give without any loss: by the base that the efficiencies are made from."""
    for point in points:
        if point.images_per_s and point.efficiency_of_one and point.efficiency_of_one.value > 0.0:
            return point.images_per_s.value / point.gpus / point.efficiency_of_one.value
    return None


def _name(settings: Setting) -> str:
    return settings_text(settings) or "measured"


def _ideal(series: Sequence[Series], value: float, *, whole: bool = False) -> Reference:
    sizes = sorted({size for each in series for size, _ in each.points})
    return Reference("ideal", tuple((size, (value * size if whole else value,) * 3) for size in sizes))


def _expected(report: Report, each: float) -> Reference:
    """The expected ranges of a GPU, as shares of so much."""
    points = []
    for point in report.expected:
        limits = point.expected.low, point.expected.value, point.expected.high
        low, value, high = (limit * (1.0 / each) / point.gpus for limit in limits)
        points.append((point.gpus, (low, value, high)))
    return Reference("expected", tuple(points))


def _scaling(study: StudyFacts, report: Report, by_setting: Mapping[Setting, list[PointFacts]]) -> Iterator[Picture]:
    left_out = len(tables.all_settings(study.points)) - len(by_setting)
    more = f" {left_out} more settings are in the table." if left_out > 0 else ""
    series = []
    for settings, points in by_setting.items():
        dots = tuple(
            (row.gpus, row.per_gpu)
            for row in report.rows
            if row.per_gpu is not None and row.settings == settings and row.arm == "full"
        )
        estimates = tuple((point.gpus, one) for point in points if (one := tables.estimate_per_gpu(point)) is not None)
        series.append(Series(_name(settings), estimates, dots))
    ideal = _ideal_each(next(iter(by_setting.values())))
    references = [_ideal(series, ideal)] if ideal is not None and len(by_setting) == 1 else []
    references += [_expected(report, 1.0)] if report.expected else []
    highest = max(
        *(one.high or one.value for each in series for _, one in each.points),
        *(value for each in series for _, value in each.dots),
        *(limits[2] for each in references for _, limits in each.points),
        0.0,
    )
    point = largest_point(study)
    each_now = tables.estimate_per_gpu(point) if point is not None else None
    assert point is not None and each_now is not None
    sure = tables.interval(each_now, rate)
    at = point_text(point.gpus, point.settings)
    says = f"{rate(each_now.value)} {report.unit}/s per GPU at {at}{chosen(study, point)}"
    says += f" (95 %: {sure})." if sure else "."
    drawing = curves(Axes(f"{report.unit}/s per GPU", rate, 0.0, 1.12 * highest), series, references)
    table = _points_table(study, report)
    yield _picture(report, "per-gpu", "Throughput per GPU", says, _CURVE, drawing, table, more)
    yield from _efficiency(study, report, by_setting, ideal)


def _efficiency(
    study: StudyFacts, report: Report, by_setting: Mapping[Setting, list[PointFacts]], ideal: float | None
) -> Iterator[Picture]:
    series, many = [], len(by_setting) > 1
    for settings, points in by_setting.items():
        for base, of in (("of one GPU alone", "efficiency_of_one"), ("of uncoupled GPUs", "efficiency_of_uncoupled")):
            own = tuple((point.gpus, one) for point in points if (one := getattr(point, of)) is not None)
            if own and (not many or of == "efficiency_of_one"):
                series.append(Series(_name(settings) if many else base, own))
    if not series:
        return
    references = [_ideal(series, 1.0)]
    references += [_expected(report, ideal)] if ideal is not None and report.expected else []
    values = [value for each in series for _, one in each.points for value in (one.value, one.low, one.high) if value]
    values += [value for each in references[1:] for _, limits in each.points for value in limits]
    low = max(0.0, math.floor(20 * (min(values) - 0.02)) / 20)
    gpus, last = series[0].points[-1]
    sure = tables.interval(last)
    at = f"{gpus_text(gpus)}, {series[0].name}" if many else gpus_text(gpus)
    says = f"{efficiency(last.value)} at {at}" + (f" (95 %: {sure})" if sure else ", without an interval")
    says += f". The axis begins at {percent(low, 0)}." if low > 0.0 else "."
    kinds = {point.scaling for point in study.points if point.scaling}
    title = f"{'- and '.join(sorted(kinds)).capitalize()}-scaling efficiency" if kinds else "Efficiency"
    axes = Axes(
        "efficiency", lambda value: percent(value, 0 if value * 100 % 1 < 1e-9 else 1), low, max(1.0, *values) + 0.02
    )
    drawing = curves(axes, series, references)
    yield _picture(report, "efficiency", title, says, _CURVE, drawing, _points_table(study, report))


def _whole(study: StudyFacts, report: Report, by_setting: Mapping[Setting, list[PointFacts]]) -> Picture:
    """Throughput of the whole world, both axes by factors."""
    series = [
        Series(_name(settings), tuple((point.gpus, point.images_per_s) for point in points if point.images_per_s))
        for settings, points in by_setting.items()
    ]
    ideal = _ideal_each(next(iter(by_setting.values())))
    references = [] if ideal is None else [_ideal(series, ideal, whole=True)]
    values = [one.value for each in series for _, one in each.points]
    values += [limits[1] for each in references for _, limits in each.points]
    gpus, last = series[0].points[-1]
    of = f" ({series[0].name})" if len(series) > 1 else ""
    says = f"{rate(last.value)} {report.unit}/s on {gpus_text(gpus)} together{of}."
    axes = Axes(f"{report.unit}/s, by factors", rate, 0.55 * min(values), 1.5 * max(values), logarithmic=True)
    drawing = curves(axes, series, references)
    return _picture(report, "whole", "Throughput of all GPUs", says, _CURVE, drawing, _points_table(study, report))


def _points_table(study: StudyFacts, report: Report) -> Table:
    return for_page(tables.point_columns(report.unit), study.points[:MOST_ROWS])


def _of_runs(report: Report) -> Iterator[Picture]:
    """Throughput per GPU of single runs, each with the precision of its run: a picture for each thing that they count,
    in it a curve for each kind of run, of those with the largest sizes.
    """
    rows = [row for row in report.rows if row.per_gpu is not None and row.arm in ("", "full")]
    units = tables.units_of(rows)
    for number, unit in enumerate(units):
        key, more = f"per-gpu-{number}" if number else "per-gpu", f", {unit}" if len(units) > 1 else ""
        yield _of_unit(report, key, f"Throughput per GPU{more}", [row for row in rows if row.unit == unit])


def _of_unit(report: Report, key: str, title: str, rows: Sequence[Row]) -> Picture:
    """Of runs that count the same."""
    largest: dict[Setting, int] = {}
    for row in rows:
        largest[row.settings] = max(row.gpus, largest.get(row.settings, 0))
    kinds = sorted(largest, key=lambda kind: -largest[kind])[: tables.MOST_SERIES]
    series, values, is_single = [], [], True
    for kind in kinds:
        own = [row for row in rows if row.settings == kind]
        # Of several runs at a size the first stands in the curve; each is a dot.
        first = {row.gpus: row for row in reversed(own)}
        points = tuple((size, _estimate_each(first[size])) for size in sorted(first))
        dots = tuple((row.gpus, row.per_gpu or 0.0) for row in own)
        values += [value for _, one in points for value in (one.value, one.high or 0.0)]
        values += [value for _, value in dots]
        is_single = is_single and len(own) == len(first)
        name = settings_text(kind) or ("run" if is_single else "first run of a size")
        series.append(Series(name, points, () if len(own) == len(first) else dots))
    best = max((row for row in rows if row.settings in kinds), key=lambda row: (row.gpus, row.per_gpu or 0.0))
    of = "; ".join(filter(None, (tables.chosen_text(best), fastest_of(best, rows))))
    of = f" ({of})" if of else ""
    says = f"{rate(best.per_gpu or 0.0)} {best.unit}/s per GPU at {gpus_text(best.gpus)}{of}. "
    says += "Limits are each run's own precision."
    if len(kinds) > 1:
        says += " Runs of different kinds are joined by no line, and their rates are of different work."
    if left_out := len(largest) - len(kinds):
        says += f" {left_out} more kinds of run are in the table."
    drawing = curves(Axes(f"{best.unit}/s per GPU", rate, 0.0, 1.12 * max(values)), series, [])
    return _picture(report, key, title, says, "Runs over the number of GPUs.", drawing, rows_table(rows))


def _estimate_each(row: Row) -> Estimate:
    low, high = (None if value is None else value / row.gpus for value in (row.low, row.high))
    return Estimate(row.per_gpu or 0.0, low, high)


def rows_table(rows: Sequence[Row]) -> Table:
    """Runs, as many as a page can show."""
    return for_page(tables.run_columns(rows), rows[:MOST_ROWS])


def _heat_maps(report: Report) -> Iterator[Picture]:
    """The run with most ranks, and another one only where it has a slow node that the first has not."""
    known = sorted((each for each in report.detailed if len(each.ranks) > 1), key=lambda each: -each.row.gpus)
    shown = known[:1] + [each for each in known[1:] if set(each.slow_nodes) - set(known[0].slow_nodes)][:1]
    for number, each in enumerate(shown):
        key, title = f"ranks{number or ''}", f"Compute time by rank, {gpus_text(each.row.gpus)}"
        drawing = heat_map(each.ranks, report.demonstration)
        what = "Heat map of ranks by node."
        yield _picture(report, key, title, _slow_sentence(each), what, drawing, _ranks_table(each))


def _slow_sentence(each: RunReport) -> str:
    names = [f"node {node} by {percent(excess)}" for node, excess in each.slow_nodes.items()]
    names += [f"rank {rank} by {percent(excess)}" for rank, excess in each.slow_ranks.items()]
    if names and each.row.demonstration:
        return f"What stands out in this demonstration, which names none as slow: {first_of(names, 3)}."
    if names:
        them = "it" if len(names) == 1 else "them"
        cost = f" Without {them} a step takes up to {percent(each.removable)} less." if each.removable > 0.0 else ""
        return f"Slow: {first_of(names, 3)}.{cost}"
    largest = max(rank.relative for rank in each.ranks)
    if each.cannot_tell:
        return f"The slowest rank is {percent(largest)} slower; healthy ranks can differ as much, so none is named."
    return f"No slow rank: the slowest is {percent(largest)} slower than the typical rank."


def _ranks_table(each: RunReport) -> Table:
    """Ranks, or nodes where there are many."""
    if len(each.ranks) <= MOST_ROWS:
        columns = tables.rank_columns(demonstration=bool(each.row.demonstration))
        return for_page(columns, [tables.Ranked(each, rank) for rank in each.ranks])
    name, slow = ("stands out", "yes") if each.row.demonstration else ("named", "slow")
    cells = node_cells(each.ranks, MOST_ROWS)
    shown = tuple((cell.name, percent(cell.excess), slow if cell.slow else "") for cell in cells)
    return Table(("node", "its slowest rank over the typical one", name), shown)


def _losses(study: StudyFacts, report: Report) -> Iterator[Picture]:
    known = sorted((loss for loss in study.losses if loss.rows), key=lambda loss: (loss.gpus, loss.settings))
    if not known:
        return
    last = known[-1]
    worst = max(last.rows, key=lambda row: row.loss.value)
    lost = efficiency(sum(row.loss.value for row in last.rows))
    says = f"At {point_text(last.gpus, last.settings)} {lost} of the ideal is lost"
    if worst.loss.value > 0.0:
        is_sure = worst.loss.low is None or worst.loss.low > 0.0
        about = "" if is_sure else f"; 95 %: {tables.interval(worst.loss)}"
        says += f"; the largest part is {worst.name} ({efficiency(worst.loss.value)}{about})"
    table = for_page(tables.loss_columns(), tables.losses_of(known)[:MOST_ROWS])
    what = "Stacked bars over the number of GPUs."
    yield _picture(report, "loss", "Where the rest goes", f"{says}.", what, losses(known), table)


def _time_lines(report: Report) -> Iterator[Picture]:
    for number, each in enumerate(report.detailed[:_MOST_TIME_LINES]):
        steps = each.steps
        if steps is None or not steps.at_s:
            continue
        middle = sorted(steps.middle_s)[len(steps.middle_s) // 2]
        spread = f"from {seconds(min(steps.low_s))} to {seconds(max(steps.high_s))}"
        says = f"Run {each.row.run}: a step takes {seconds(middle)}, {spread} by groups of steps."
        title = f"Step times, {gpus_text(each.row.gpus)}"
        yield _picture(report, f"steps{number}", title, says, "Line over time.", time_line(steps), _steps_table(steps))


def _steps_table(steps: StepTimes) -> Table:
    """Some twenty points of the line."""
    rows = tuple(
        (f"{steps.at_s[at]:.1f}", seconds(steps.middle_s[at]), seconds(steps.low_s[at]), seconds(steps.high_s[at]))
        for at in range(0, len(steps.at_s), max(len(steps.at_s) // 20, 1))
    )
    return Table(("seconds", "median step", "least", "greatest"), rows)
