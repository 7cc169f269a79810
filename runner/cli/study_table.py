"""A study as text, as wide as there is room: what it costs, its launches, its points, and what is not proven."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime

from runner.cli.table import GAP, aligned, fitting, wrapped
from runner.cli.text import age
from runner.core.invocation import PROGRAM
from runner.core.text import counted, gpus_text, printable
from runner.model.figure import OWN_OF_A_POINT, shared_doubts
from runner.model.study import (
    Estimate,
    Launch,
    LaunchFacts,
    ListedStudy,
    Loss,
    PointFacts,
    SingleGpus,
    StudyFacts,
    WayCost,
)
from runner.statistics.launches import CHANGES, MOST_LAUNCHES

_NOTHING = "-"
_COSTS = ("WAY", "JOBS", "GPU-HOURS", "AT MOST", "TIME")
_POINTS = ("GPUS", "ARM", "SETTING", "PROVEN", "IMAGES/S", "95 %", "PER GPU", "EFFICIENCY", "OF UNCOUPLED")
_POINTS_RIGHT = frozenset(("GPUS", "PROVEN", "IMAGES/S", "PER GPU"))
# Between points, only what differs is needed; an interval says more than what can be computed from other columns.
_POINTS_LEFT_OUT = ("PER GPU", "OF UNCOUPLED", "ARM", "95 %", "PROVEN")
_STUDIES = ("STUDY", "STATE", "PROVEN", "GPUS", "SITE", "RECIPE", "AGE")
_MOST_REASONS = 8


def cost_lines(costs: Sequence[WayCost], chosen: WayCost, launches: int, wide: int | None) -> list[str]:
    """What each way is expected to cost, and which is taken."""
    if not launches:
        return ["every launch is proven, in the queue, or has had all its attempts (--attempts N): nothing to start"]
    rows = [
        {
            "WAY": f"{each.way}{' *' if each == chosen and len(costs) > 1 else ''}",
            "JOBS": str(each.jobs),
            "GPU-HOURS": _figure(each.gpu_hours),
            "AT MOST": _figure(each.most_gpu_hours),
            "TIME": age(each.wall_s),
        }
        for each in costs
    ]
    head = f"{counted(launches, 'launch')}; expected, with start and warm-up, without waiting in the queue:"
    table = fitting(rows, _COSTS, _COSTS[1:], ("AT MOST", "JOBS"), wide) or aligned(rows, _COSTS, _COSTS[1:])
    notes = [f"{each.way}: {note}" for each in costs for note in each.notes]
    return [*_wrapped([head], wide), *table, *_wrapped(notes, wide, GAP)]


def launch_lines(launches: Iterable[Launch]) -> list[str]:
    """The launches in their order."""
    return [printable(each.key) for each in launches]


def facts_lines(facts: StudyFacts, wide: int | None) -> list[str]:
    """The study as it stands."""
    proven = sum(each.state == "proven" for each in facts.launches)
    head = f"study {printable(facts.study)}: {facts.state}, {proven} of {counted(len(facts.launches), 'launch')} proven"
    lines = [*_wrapped([head], wide), *_wrapped([f"[{facts.demonstration}]"] if facts.demonstration else [], wide)]
    losses = [line for each in facts.losses if each.rows for line in _loss(each, wide)]
    return [*lines, *_points(facts, wide), *losses, *_wrapped(_notes(facts), wide, GAP)]


def study_lines(studies: Sequence[ListedStudy], now: datetime, wide: int | None) -> list[str]:
    """The list of studies: a table, or two lines for each where there is no room for one."""
    rows = [
        {
            "STUDY": printable(each.study),
            "STATE": each.state,
            "PROVEN": f"{each.proven}/{each.launches}",
            "GPUS": ",".join(map(str, each.gpus)),
            "SITE": printable(each.site),
            "RECIPE": printable(each.recipe),
            "AGE": age((now - each.created).total_seconds()),
        }
        for each in studies
    ]
    table = fitting(rows, _STUDIES, ("PROVEN", "AGE"), ("RECIPE", "SITE", "AGE", "GPUS"), wide)
    if table is not None:
        return table
    return [
        line for row in rows for line in (row["STUDY"], f"{GAP}{row['STATE']}{GAP}{row['PROVEN']}{GAP}{row['AGE']}")
    ]


def _points(facts: StudyFacts, wide: int | None) -> list[str]:
    unit = next((each.unit for each in facts.launches if each.images_per_s is not None), "images")
    rate = f"{unit.upper()}/S"
    rows = [_cells(each, rate) for each in facts.points]
    names = [rate if name == "IMAGES/S" else name for name in _POINTS]
    empty = [name for name in names if all(row[name] in ("", _NOTHING) for row in rows)]
    same = [name for name in ("ARM",) if len({row[name] for row in rows}) == 1]
    columns = [name for name in names if name not in empty and name not in same]
    table = fitting(rows, columns, {*_POINTS_RIGHT, rate}, _POINTS_LEFT_OUT, wide)
    if table is not None:
        return table
    return [line for row in rows for line in _two_lines(row, rate)]


def _loss(loss: Loss, wide: int | None) -> list[str]:
    """Where the loss of one size goes: rows that add up with the efficiency."""
    setting = "".join(f", {name}={value}" for name, value in loss.settings)
    rows = [
        {"LOSS": printable(each.name), "OF THE IDEAL": share_text(each.loss), "NOTE": printable(each.note)}
        for each in loss.rows
    ]
    columns = ("LOSS", "OF THE IDEAL", *(("NOTE",) if any(row["NOTE"] for row in rows) else ()))
    table = fitting(rows, columns, (), (), wide) or list(_loss_with_notes_below(rows, wide))
    head = (
        f"where the loss at {gpus_text(loss.gpus)}{printable(setting)} goes; efficiency {share_text(loss.efficiency)}:"
    )
    return [*_wrapped([head], wide), *(f"{GAP}{line}" if wide is None else line for line in table)]


def _loss_with_notes_below(rows: Sequence[dict[str, str]], wide: int | None) -> Iterator[str]:
    """Where there is no room for a column of notes, or not even for two columns."""
    head, *lines = fitting(rows, ("LOSS", "OF THE IDEAL"), (), (), wide) or ["", *(row["LOSS"] for row in rows)]
    yield from [head] if head else []
    for line, row in zip(lines, rows, strict=True):
        yield line
        yield from _wrapped(filter(None, ("" if head else row["OF THE IDEAL"], row["NOTE"])), wide, GAP)


def _cells(point: PointFacts, column: str) -> dict[str, str]:
    rate = point.images_per_s
    return {
        "GPUS": str(point.gpus),
        "ARM": point.arm,
        "SETTING": printable(" ".join(f"{name}={value}" for name, value in point.settings)),
        "PROVEN": f"{point.proven}/{point.wanted}",
        column: _NOTHING if rate is None else f"{rate.value:.1f}",
        "95 %": _NOTHING
        if rate is None or rate.low is None or rate.high is None
        else f"{rate.low:.1f}-{rate.high:.1f}",
        "PER GPU": _NOTHING if rate is None else f"{rate.value / point.gpus:.1f}",
        "EFFICIENCY": share_text(point.efficiency_of_one),
        "OF UNCOUPLED": share_text(point.efficiency_of_uncoupled),
    }


def _two_lines(row: dict[str, str], rate: str) -> list[str]:
    setting = f"{GAP}{row['SETTING']}" if row["SETTING"] else ""
    return [
        f"{gpus_text(int(row['GPUS']))}{GAP}{row['ARM']}{setting}",
        f"{GAP}{row[rate]} {rate.lower()}{GAP}{row['EFFICIENCY']}",
    ]


def share_text(estimate: Estimate | None) -> str:
    """A share with its interval: ``90.0 % (85.0-95.0)``."""
    if estimate is None:
        return _NOTHING
    value = f"{100 * estimate.value:.1f} %"
    if estimate.low is None or estimate.high is None:
        return value
    return f"{value} ({100 * estimate.low:.1f}-{100 * estimate.high:.1f})"


def _notes(facts: StudyFacts) -> list[str]:
    notes = []
    behind = [each for each in facts.launches if each.state != "proven"]
    for each in [each for each in behind if each.state == "not-proven" or each.why][:_MOST_REASONS]:
        notes.append(printable(f"{each.launch.key}: {_state(each)}"))
    if len(behind) > _MOST_REASONS:
        notes.append(f"{counted(len(behind), 'launch')} are not proven; all of them: --json")
    notes += [printable(_alone(each, is_claim=not facts.demonstration)) for each in facts.single_gpus]
    if any(each.images_per_s is not None and each.images_per_s.low is None for each in facts.points):
        notes.append("one launch makes no claim: it has no interval")
    doubts = shared_doubts((each.figure for each in facts.launches), without=OWN_OF_A_POINT)
    notes += [printable(f"doubt: {each.words}") for each in doubts if each.code != "demonstration"]
    spreads = [each for each in facts.points if each.spread]
    if spreads:
        worst = max(spreads, key=lambda each: each.spread or 0.0)
        counts = ", ".join(
            f"{100 * change:g} %: {worst.launches_needed.get(f'{change:g}', f'over {MOST_LAUNCHES}')}"
            for change in CHANGES
        )
        spread = 100 * (worst.spread or 0.0)
        notes.append(
            f"standard deviation between launches: up to {spread:.2g} %; "
            f"launches that a claim needs, each side: {counts}"
        )
    has_each = any(each.arm == "solo" and each.gpus for each in facts.single_gpus)
    if facts.way == "one-allocation" and not has_each and any(each.efficiency_of_one for each in facts.points):
        notes.append("one GPU alone is GPU 0 of node 0, and others may be faster or slower: --arms solo runs each")
    is_without_base = not any(each.gpus == 1 and each.images_per_s for each in facts.points)
    if is_without_base and any(each.gpus > 1 for each in facts.points):
        if any(each.gpus == 1 for each in facts.points):
            notes.append("no efficiency: no launch of one GPU is proven")
        else:
            notes.append("no efficiency: one GPU alone is not measured (--gpus 1,... or --arms solo)")
    notes += [
        printable(f"{gpus_text(each.gpus)}: no attribution of the loss: {each.why}")
        for each in facts.losses
        if each.why
    ]
    notes += [printable(f"not comparable: {each}") for each in facts.differences]
    notes += [printable(f"gap: {each}; figures without it may be chosen ones") for each in facts.gaps]
    if facts.way == "separate":
        notes.append(
            "separate jobs: no attribution of the loss, and no A/B verdict but on launches that ran in turns on the "
            "same nodes and GPUs"
        )
    name = printable(facts.study)
    if facts.state == "running":
        notes.append(f"next: {PROGRAM} wait {name}")
    elif facts.state == "incomplete":
        notes.append(f"next: {PROGRAM} scale --resume {name}")
    return notes


def _alone(found: SingleGpus, *, is_claim: bool) -> str:
    """Of a demonstration none is named as slow."""
    setting = "".join(f", {name}={value}" for name, value in found.settings)
    spread = "" if found.spread is None else f", standard deviation between them {100 * found.spread:.2g} %"
    slowest = f", slowest {found.slowest}: {100 * (found.slowest_by or 0.0):.1f} % below the mean"
    lacks = f"; not proven: {', '.join(found.missing[:_MOST_REASONS])}" if found.missing else ""
    more = f" and {len(found.missing) - _MOST_REASONS} more" if len(found.missing) > _MOST_REASONS else ""
    head = f"{found.arm}{setting}: {found.gpus} of {found.wanted} GPUs, each alone"
    if not (found.slowest and is_claim):
        slowest = ""
    elif found.launches < 2:
        slowest = "; one launch of each names none as slow"
    return f"{head}{spread}{slowest}{lacks}{more}"


def _state(launch: LaunchFacts) -> str:
    why = f": {launch.why}" if launch.why else ""
    attempts = f" after {launch.attempts} attempts" if launch.attempts > 1 else ""
    return f"{launch.state.replace('-', ' ')}{attempts}{why}{f' ({launch.run})' if launch.run else ''}"


def _figure(value: float) -> str:
    return f"{value:.2f}" if value < 10 else f"{value:.0f}"


def _wrapped(lines: Iterable[str], wide: int | None, indent: str = "") -> list[str]:
    return [each for line in lines for each in wrapped(line, wide, first=indent, then=f"{indent}{GAP}")]
