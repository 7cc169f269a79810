"""An expectation as text, as wide as there is room: points, what they rest on, and what each input does."""

from __future__ import annotations

from collections.abc import Sequence

from runner.cli.table import GAP, aligned, fitting, wrapped
from runner.core.text import gpus_text, printable
from runner.model.expectation import Expectation, ExpectedPoint, Input, Range

_COLUMNS = ("GPUS", "NODES", "IMAGES/S", "EFFICIENCY", "STEP MS", "EXPOSED", "WAITING", "BOUND BY")
_LEFT_OUT = ("WAITING", "EXPOSED", "STEP MS", "NODES", "BOUND BY")  # of a narrow table, in this order
_TO_THE_RIGHT = ("GPUS", "NODES", "IMAGES/S", "EFFICIENCY", "STEP MS", "EXPOSED", "WAITING")
_LEAST_SOURCE = 24  # columns, beside the numbers; else below them
_PIPE = 10_000


def lines(answer: Expectation, width: int | None) -> list[str]:
    """The text; no line is wider than ``width`` as far as names allow. None for any width."""
    room = width or _PIPE
    settings = ", ".join(f"{name} {value}" for name, value in answer.settings)
    head = f"{answer.recipe} at {answer.site}: {settings}"
    found = [*wrapped(head, room), ""]
    found += _points(answer.points, room)
    found += [
        "",
        *wrapped("Each is LOW - VALUE - HIGH: every input at its worse end, as expected, at its better end.", room),
    ]
    found += ["", "Inputs", *_inputs(answer.inputs, room)]
    largest = answer.points[-1]
    if largest.sensitivities:
        found += ["", *wrapped(f"What 20 % of an input does to the throughput of {gpus_text(largest.gpus)}", room)]
        found += _sensitivities(largest, room)
    if answer.notes:
        found += ["", *(line for note in answer.notes for line in wrapped(f"- {note}", room, then="  "))]
    return found


def _points(points: Sequence[ExpectedPoint], width: int) -> list[str]:
    rows = [_cells(each) for each in points]
    table = fitting(rows, _COLUMNS, _TO_THE_RIGHT, _LEFT_OUT, width)
    if table is not None:
        return table
    found: list[str] = []
    for row in rows:
        found += [gpus_text(int(row["GPUS"])), f"  {row['IMAGES/S']} images/s", f"  {row['EFFICIENCY']} efficiency"]
    return found


def _cells(point: ExpectedPoint) -> dict[str, str]:
    return {
        "GPUS": str(point.gpus),
        "NODES": str(point.nodes),
        "IMAGES/S": _range(point.images_per_s),
        "EFFICIENCY": _shares(point.efficiency),
        "STEP MS": f"{point.step_s * 1e3:.4g}",
        "EXPOSED": f"{point.exposed_s * 1e3:.3g} ms",
        "WAITING": f"{point.waiting_s * 1e3:.3g} ms",
        "BOUND BY": point.bound,
    }


def _inputs(inputs: Sequence[Input], width: int) -> list[str]:
    rows = [
        {"INPUT": each.name, "LOW - VALUE - HIGH": _range(Range(each.low, each.value, each.high)), "UNIT": each.unit}
        for each in inputs
    ]
    table = aligned(rows, ("INPUT", "LOW - VALUE - HIGH", "UNIT"), ("LOW - VALUE - HIGH",))
    beside = max(map(len, table)) + len(GAP)
    if width - beside >= _LEAST_SOURCE:
        found = [f"{table[0].ljust(beside)}SOURCE"]
        for line, each in zip(table[1:], inputs, strict=True):
            source = wrapped(printable(each.source), width - beside) or [""]
            found.append(f"{line.ljust(beside)}{source[0]}".rstrip())
            found += [" " * beside + more for more in source[1:]]
        return found
    found = []
    for each, row in zip(inputs, rows, strict=True):
        found += wrapped(f"{each.name}: {row['LOW - VALUE - HIGH']} {each.unit}".rstrip(), width, then="  ")
        found += [f"  {line}" for line in wrapped(printable(each.source), width - 2)]
    return found


def _sensitivities(point: ExpectedPoint, width: int) -> list[str]:
    rows = [
        {"INPUT": each.name, "20 % LESS": f"{each.less:+.1%}", "20 % MORE": f"{each.more:+.1%}"}
        for each in point.sensitivities
    ]
    columns = ("INPUT", "20 % LESS", "20 % MORE")
    table = fitting(rows, columns, columns[1:], (), width)
    if table is not None:
        return table
    return [line for row in rows for line in (row["INPUT"], f"  {row['20 % LESS']} to {row['20 % MORE']}")]


def _range(numbers: Range) -> str:
    if numbers.low == numbers.high:
        return _number(numbers.value)
    return f"{_number(numbers.low)} - {_number(numbers.value)} - {_number(numbers.high)}"


def _shares(numbers: Range) -> str:
    if numbers.low == numbers.high:
        return f"{numbers.value:.1%}"
    return f"{numbers.low:.1%} - {numbers.value:.1%} - {numbers.high:.1%}"


def _number(value: float) -> str:
    """Three or four digits that tell, without an exponent where there is room."""
    return f"{value:.0f}" if 100 <= value < 1e9 else f"{value:.3g}"
