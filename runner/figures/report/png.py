"""The picture for a talk: the main curves, the loss and the slow node on one slide, by matplotlib."""

from __future__ import annotations

import io
import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runner.core import paths
from runner.core.numbers import NARROW, percent, rate
from runner.core.text import gpus_text, printable
from runner.figures.report.gallery import expected_efficiency, ideal_each, main_kinds
from runner.figures.report.pictures.heat_map import STEPS, by_node, node_cells, step_of
from runner.figures.tables import curve, main_settings, of_each, settings_text, units_of
from runner.model.report import Report
from runner.model.study import PointFacts

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_INK, _QUIET, _GRID, _LABEL = "#17191c", "#555b63", "#e7e7e2", "#8a4500"
_SERIES = (("#1d4e89", "o", "-"), ("#ad4f06", "s", "--"), ("#0f6b5c", "^", ":"), ("#7a3b86", "D", "-."))
_PARTS = (
    ("#24588f", ""), ("#e0a24a", "///"), ("#7db5a5", "\\\\\\"), ("#c4b2d1", "---"), ("#e6cdbb", "|||"),
    ("#8fa3b8", "+++"),
)  # fmt: skip
_HEAT = ("#eff3f8", "#d0ddeb", "#9fbbd8", "#3b6c9f", "#12355c")
_ON_HEAT = ("#17191c", "#17191c", "#17191c", "#ffffff", "#ffffff")
_MOST_UNITS = 3
_MOST_TITLE = 54  # characters in large letters
_INCHES, _DPI = (16.0, 9.0), 120


def png(report: Report) -> bytes:
    """The picture, 1920 x 1080. Text of runs is drawn as it is: no part of it is a formula."""
    with _font_cache():
        return _drawn(report)


@contextmanager
def _font_cache() -> Iterator[None]:
    """Where matplotlib keeps its list of fonts: our cache, or for this time only where that cannot be written."""
    with tempfile.TemporaryDirectory() as temporary:
        place = paths.cache("matplotlib")
        try:
            paths.ensure_directory(place)
        except OSError:
            place = Path(temporary)
        os.environ.setdefault("MPLCONFIGDIR", str(place))
        yield


def _drawn(report: Report) -> bytes:
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib.figure import Figure

    style: Any = {
        "font.family": "sans-serif", "font.size": 15, "text.color": _INK, "axes.labelcolor": _QUIET,
        "xtick.color": _QUIET, "ytick.color": _QUIET, "axes.edgecolor": _QUIET, "text.parse_math": False,
        "axes.spines.top": False, "axes.spines.right": False, "axes.spines.left": False, "hatch.linewidth": 0.8,
        "axes.titlesize": 18, "axes.titleweight": "bold", "axes.titlelocation": "left", "axes.titlepad": 14,
    }  # fmt: skip
    panels = _panels(report)
    with mpl.rc_context(style):
        figure = Figure(figsize=_INCHES, dpi=_DPI, facecolor="white")
        rows = (len(panels) + 1) // 2 or 1
        grid = figure.add_gridspec(rows, 2)
        for place, draw in enumerate(panels):
            is_last_alone = place == len(panels) - 1 and place % 2 == 0
            draw(report, figure.add_subplot(grid[place // 2, slice(0, 2) if is_last_alone else place % 2]))
        figure.subplots_adjust(left=0.06, right=0.975, top=0.80, bottom=0.115, hspace=0.55, wspace=0.2)
        # Beside a long title there is room for the label of a demonstration only where the title is smaller.
        most = _MOST_TITLE // 2 if report.demonstration else _MOST_TITLE
        size = 28 if len(report.title) <= most else 17
        figure.text(0.035, 0.945, _plain(report.title, 62 if report.demonstration else 92), fontsize=size,
                    fontweight="bold")  # fmt: skip
        figure.text(0.035, 0.902, _plain(report.subtitle.replace("`", ""), 130), fontsize=15, color=_QUIET)
        if report.demonstration:
            figure.text(0.975, 0.95, "DEMONSTRATION, NO PERFORMANCE CLAIM", fontsize=13, fontweight="bold",
                        color=_LABEL, ha="right",
                        bbox={"boxstyle": "round,pad=0.4", "fc": "none", "ec": _LABEL})  # fmt: skip
        figure.text(0.035, 0.025, f"gpu-runner {report.version}, {report.made:%Y-%m-%d}", fontsize=12, color=_QUIET)
        file = io.BytesIO()
        figure.savefig(file, format="png", metadata={"Software": f"gpu-runner {report.version}"})
    return file.getvalue()


def _panels(report: Report) -> list[Any]:
    study = report.study
    panels: list[Any] = []
    if study is not None and main_settings(study):
        panels.append(_per_gpu)
        if any(point.efficiency_of_one or point.efficiency_of_uncoupled for point in study.points):
            panels.append(_efficiency)
        if any(loss.rows for loss in study.losses):
            panels.append(_losses)
    elif any(row.per_gpu is not None for row in report.rows):
        panels += [_runs_of(unit) for unit in units_of(report.rows)[:_MOST_UNITS]]
    if any(len(each.ranks) > 1 for each in report.detailed):
        panels.append(_ranks)
    if len(panels) < 4 and any(each.steps for each in report.detailed):
        panels.append(_steps)
    return panels


def _per_gpu(report: Report, axes: Axes) -> None:
    study = report.study
    assert study is not None
    settings = main_settings(study)
    points = [curve(study.points, each) for each in settings]
    _curves(
        axes,
        [
            (settings_text(each), [(point, of_each(point)) for point in own])
            for each, own in zip(settings, points, strict=True)
        ],
        rate,
        "lower center",  # a low curve's first value stands at the left
    )
    ideal = ideal_each(points[0])
    if ideal is not None and len(settings) == 1:
        axes.axhline(ideal, color=_QUIET, ls=(0, (5, 4)), lw=1.5, zorder=1)
        axes.annotate("ideal: one GPU alone", (1.0, ideal), xycoords=("axes fraction", "data"), ha="right", va="bottom",
                      xytext=(0, 4), textcoords="offset points", color=_QUIET, fontsize=13)  # fmt: skip
    axes.set_ylim(0, 1.15 * max(axes.get_ylim()[1], ideal or 0.0))
    axes.yaxis.set_major_formatter(_grouped)
    axes.set_title(f"Throughput per GPU, {report.unit}/s")


def _efficiency(report: Report, axes: Axes) -> None:
    study = report.study
    assert study is not None
    settings = main_settings(study)
    series: list[tuple[str, list[tuple[PointFacts, Any]]]] = []
    for each in settings:
        own = curve(study.points, each)
        one = [(point, point.efficiency_of_one) for point in own if point.efficiency_of_one]
        apart = [(point, point.efficiency_of_uncoupled) for point in own if point.efficiency_of_uncoupled]
        name = settings_text(each) if len(settings) > 1 else "of one GPU alone"
        series += [(name, one)] if one else []
        series += [("of uncoupled GPUs", apart)] if apart and len(settings) == 1 else []
    _curves(axes, series, percent, "lower left")
    axes.axhline(1.0, color=_QUIET, ls=(0, (5, 4)), lw=1.5, zorder=1)
    expected = expected_efficiency(report, study)
    if expected:
        sizes, lows, highs = zip(*((size, low, high) for size, (low, _, high) in expected), strict=True)
        axes.fill_between(sizes, lows, highs, color="#7d838b", alpha=0.22, lw=0, label="expected", zorder=0)
        axes.legend(frameon=False, fontsize=13, loc="lower left", handlelength=3)
    low = min(estimate.low or estimate.value for _, own in series for _, estimate in own)
    high = max(estimate.high or estimate.value for _, own in series for _, estimate in own)
    axes.set_ylim(max(0.0, low - 0.05), max(1.0, high) + 0.03)
    axes.yaxis.set_major_formatter(lambda value, _at: percent(value, 0))
    axes.set_title(f"{'Strong' if study.strong else 'Weak'}-scaling efficiency")


def _curves(axes: Axes, series: list[tuple[str, list[tuple[PointFacts, Any]]]], write: Any, legend: Any) -> None:
    sizes = sorted({point.gpus for _, own in series for point, _ in own})
    for number, (name, own) in enumerate(series):
        color, marker, line = _SERIES[number % len(_SERIES)]
        x = [point.gpus for point, _ in own]
        y = [estimate.value for _, estimate in own]
        low = [estimate.value - (estimate.low if estimate.low is not None else estimate.value) for _, estimate in own]
        high = [
            (estimate.high if estimate.high is not None else estimate.value) - estimate.value for _, estimate in own
        ]
        axes.errorbar(
            x, y, (low, high), color=color, marker=marker, ls=line, lw=2.5, ms=9, capsize=5, label=_plain(name, 40)
        )
        below = len(series) == 1 or own[-1][1].value < max(other[-1][1].value for _, other in series if other)
        for place, (at, value) in enumerate(zip(x, y, strict=True)):
            if number < 2 or place == len(x) - 1:
                near = max(low[place], high[place]) < 0.03 * value
                edge = value - low[place] if below else value + high[place]
                beside = 0 if near else 34 if place == 0 else -34
                axes.annotate(write(value), (at, edge if near else value),
                              xytext=(beside, -20 if below else 9), textcoords="offset points",
                              ha="center", fontsize=13, fontweight="bold")  # fmt: skip
    _sizes_below(axes, sizes, "GPUs")
    axes.margins(x=0.08)
    if len(series) > 1:
        axes.legend(frameon=False, fontsize=13, loc=legend, handlelength=3)


def _sizes_below(axes: Axes, sizes: Sequence[int], label: str) -> None:
    """Numbers of GPUs along the bottom, each where its logarithm is, and lines for the values only."""
    if len(sizes) > 1:
        axes.set_xscale("log", base=2)
    axes.set_xticks(sizes, [str(size) for size in sizes])
    axes.minorticks_off()
    axes.grid(axis="y", color=_GRID)
    axes.set_axisbelow(True)
    axes.tick_params(length=0)
    axes.set_xlabel(label)


def _losses(report: Report, axes: Axes) -> None:
    from matplotlib.ticker import MaxNLocator

    study = report.study
    assert study is not None
    losses = sorted((loss for loss in study.losses if loss.rows), key=lambda loss: (loss.gpus, loss.settings))[-5:]
    names = list(dict.fromkeys(row.name for loss in losses for row in loss.rows))
    left, right = [0.0] * len(losses), [0.0] * len(losses)
    is_named = any(loss.settings for loss in losses)
    for number, name in enumerate(names):
        color, hatch = _PARTS[number % len(_PARTS)]
        shares = [next((row.loss.value for row in loss.rows if row.name == name), 0.0) for loss in losses]
        starts = [right[at] if share >= 0.0 else left[at] for at, share in enumerate(shares)]
        axes.barh(
            range(len(losses)),
            shares,
            left=starts,
            color=color,
            hatch=hatch,
            edgecolor="white",
            height=0.5 if is_named else 0.62,
            label=name,
        )
        for at, share in enumerate(shares):
            if share >= 0.0:
                right[at] += share
            else:
                left[at] += share
    for at, loss in enumerate(losses):
        axes.annotate(percent(sum(row.loss.value for row in loss.rows)), (right[at], at), xytext=(8, 0),
                      textcoords="offset points", va="center", fontweight="bold", fontsize=13)  # fmt: skip
        # Above its bar: beside it there is room for a number only.
        axes.annotate(_plain(settings_text(loss.settings), 56), (0.0, at - 0.27),
                      xycoords=("axes fraction", "data"), xytext=(4, 2), textcoords="offset points", fontsize=11,
                      color=_QUIET)  # fmt: skip
    axes.set_yticks(range(len(losses)), [str(loss.gpus) for loss in losses])
    axes.set_ylabel("GPUs")
    axes.invert_yaxis()
    axes.xaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))
    axes.xaxis.set_major_formatter(lambda value, _at: percent(value, 0))
    axes.set_xlim(min(0.0, *left), max(0.01, *right) * 2.1)
    axes.grid(axis="x", color=_GRID)
    axes.set_axisbelow(True)
    axes.tick_params(length=0)
    axes.legend(frameon=False, fontsize=12, loc="center right", handlelength=1.6, borderaxespad=0.0)
    axes.set_title("Where the rest goes, of the ideal throughput")


def _ranks(report: Report, axes: Axes) -> None:
    from matplotlib.patches import Rectangle

    each = max((each for each in report.detailed if len(each.ranks) > 1), key=lambda each: each.row.gpus)
    nodes = by_node(each.ranks)
    if len(nodes) <= 8:
        rows = [(name, [(rank.relative, rank.slow) for rank in own]) for name, own in nodes.items()]
    else:
        cells = node_cells(each.ranks, 256)
        rows = [("", [(cell.excess, cell.slow) for cell in cells[at : at + 32]]) for at in range(0, len(cells), 32)]
    columns = max(len(own) for _, own in rows)
    for line, (_, own) in enumerate(rows):
        for place, (excess, slow) in enumerate(own):
            step = step_of(excess)
            box = Rectangle((place + 0.03, line + 0.06), 0.94, 0.88, facecolor=_HEAT[step],
                            edgecolor=_INK if slow else "#d9d9d3", lw=2.5 if slow else 0.5)  # fmt: skip
            axes.add_patch(box)
            if columns <= 16:
                sign = "+" if round(100 * excess) > 0 else ""
                axes.text(place + 0.5, line + 0.5, f"{sign}{percent(excess, 0)}", ha="center", va="center",
                          color=_ON_HEAT[step], fontsize=13 if columns <= 8 else 10)  # fmt: skip
    axes.set_xlim(0, columns)
    axes.set_ylim(len(rows), 0)
    axes.set_xticks([])
    axes.set_yticks([line + 0.5 for line in range(len(rows))], [_plain(name, 14) for name, _ in rows])
    axes.tick_params(length=0)
    axes.spines["bottom"].set_visible(False)
    of = "rank" if len(nodes) <= 8 else "node's slowest rank"
    limits = ", ".join(f"{100 * least:g}" for least in STEPS[1:])
    axes.set_xlabel(f"each {of} over the typical one; darker from {limits} %")
    axes.set_title(f"Compute time by rank, {gpus_text(each.row.gpus)}")


def _runs_of(unit: str) -> Any:
    """A panel of the single runs that count this: each kind of run has a marker of its own."""

    def draw(report: Report, axes: Axes) -> None:
        rows = [row for row in report.rows if row.per_gpu is not None and row.unit == unit]
        kinds = main_kinds(rows)
        rows = [row for row in rows if row.settings in kinds]
        for number, kind in enumerate(kinds):
            color, marker, _ = _SERIES[number % len(_SERIES)]
            label: str | None = _plain(settings_text(kind), 40)
            for row in rows:
                if row.settings == kind:
                    low, high = ((None if value is None else value / row.gpus) for value in (row.low, row.high))
                    value = row.per_gpu or 0.0
                    error = None if low is None or high is None else ([max(value - low, 0.0)], [max(high - value, 0.0)])
                    axes.errorbar([row.gpus], [value], error, color=color, marker=marker, ms=9, capsize=5, ls="none",
                                  label=label)  # fmt: skip
                    label = None  # stands in the legend once
                    if len(rows) <= 8:
                        axes.annotate(rate(value), (row.gpus, high or value), xytext=(0, 9),
                                      textcoords="offset points", ha="center", fontsize=13,
                                      fontweight="bold")  # fmt: skip
        if len(kinds) > 1:
            axes.legend(frameon=False, fontsize=13, loc="lower left", handlelength=1.5)
        sizes = sorted({row.gpus for row in rows})
        _sizes_below(axes, sizes, "GPUs; limits: precision of each run, no claim")
        axes.set_ylim(0, 1.2 * max((row.high or row.images_per_s or 0.0) / row.gpus for row in rows))
        axes.yaxis.set_major_formatter(_grouped)
        axes.set_title(f"Throughput per GPU, {unit}/s")

    return draw


def _steps(report: Report, axes: Axes) -> None:
    each = next(each for each in report.detailed if each.steps)
    steps = each.steps
    assert steps is not None
    axes.plot(steps.at_s, [1000.0 * value for value in steps.middle_s], color=_SERIES[0][0], lw=1.8)
    axes.fill_between(steps.at_s, [1000.0 * value for value in steps.low_s], [1000.0 * value for value in steps.high_s],
                      color=_SERIES[0][0], alpha=0.2, lw=0)  # fmt: skip
    if steps.cut_s > 0.0:
        axes.axvspan(0.0, steps.cut_s, color=_QUIET, alpha=0.16, lw=0)
    low, high = min(steps.low_s), max(steps.high_s)
    room = max(0.06 * (high - low), 0.02 * high)
    axes.set_ylim(1000.0 * (low - room), 1000.0 * (high + room))
    axes.grid(axis="y", color=_GRID)
    axes.set_axisbelow(True)
    axes.tick_params(length=0)
    axes.set_xlabel("seconds in the window")
    axes.set_title(f"Step time, ms, {gpus_text(each.row.gpus)}")


def _grouped(value: float, _at: float) -> str:
    """A number of an axis as the values beside it are written."""
    return f"{value:,g}".replace(",", NARROW)


def _plain(content: str, most: int) -> str:
    """One line without what no font has."""
    shown = printable(content)
    return shown if len(shown) <= most else f"{shown[: most - 1]}\N{HORIZONTAL ELLIPSIS}"
