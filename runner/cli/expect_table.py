"""An expectation as text, as wide as there is room: points, what they rest on, and what each input does."""

from __future__ import annotations

from collections.abc import Callable

from runner.cli.table import wrapped_all
from runner.core.columns import Column, lines_of
from runner.core.text import gpus_text, percent, rate, seconds, with_span
from runner.model.expectation import Expectation, ExpectedPoint, Input, Range, Sensitivity

_POINTS: tuple[Column[ExpectedPoint], ...] = (
    Column("GPUs", values="gpus", right=True),
    Column("nodes", values="nodes", right=True, leave=2),
    Column("images/s", lambda each: _range(each.images_per_s, _number), right=True),
    Column("efficiency", lambda each: _range(each.efficiency, percent), right=True),
    Column("step", lambda each: seconds(each.step_s), right=True, leave=3),
    Column("exposed", lambda each: seconds(each.exposed_s), right=True, leave=4),
    Column("waiting", lambda each: seconds(each.waiting_s), right=True, leave=5),
    Column("bound by", values="bound", leave=1),
)
_INPUTS: tuple[Column[Input], ...] = (
    Column("input", values="name"),
    Column("value", lambda each: _range(Range(each.low, each.value, each.high), _number), right=True),
    Column("unit", values="unit"),
    Column("source", values="source"),
)
_SENSITIVITIES: tuple[Column[Sensitivity], ...] = (
    Column("input", values="name"),
    Column("20 % less", lambda each: percent(each.less, signed=True), right=True),
    Column("20 % more", lambda each: percent(each.more, signed=True), right=True),
)


def lines(answer: Expectation, width: int | None) -> list[str]:
    """The text; no line is wider than ``width`` as far as names allow. None for any width."""
    settings = ", ".join(f"{name} {value}" for name, value in answer.settings)
    largest = answer.points[-1]
    made = [*wrapped_all([f"{answer.recipe} at {answer.site}: {settings}"], width), ""]
    made += lines_of(_POINTS, answer.points, width)
    made += ["", *wrapped_all(["In brackets: every input at its worse end, and at its better end."], width)]
    made += ["", "Inputs", *lines_of(_INPUTS, answer.inputs, width)]
    if largest.sensitivities:
        head = f"What 20 % of an input does to the throughput of {gpus_text(largest.gpus)}"
        made += ["", *wrapped_all([head], width), *lines_of(_SENSITIVITIES, largest.sensitivities, width)]
    notes = wrapped_all((f"- {note}" for note in answer.notes), width)
    return [*made, *(["", *notes] if notes else [])]


def _range(numbers: Range, write: Callable[[float], str]) -> str:
    """``96.6 % (94.2 % to 98.6 %)``."""
    if numbers.low == numbers.high:
        return write(numbers.value)
    return with_span(numbers.value, numbers.low, numbers.high, write)


def _number(value: float) -> str:
    """An input may be far smaller than a rate."""
    return rate(value) if value >= 1.0 else f"{value:.3g}"
