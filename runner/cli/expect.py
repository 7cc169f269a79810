"""``recipe expect``: what a recipe should reach on so many GPUs, as a range."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, get_args

import click

from runner.cli.options import JSON, answer, by_shell, path_option, setting
from runner.cli.table import width_of_terminal, wrapped_all
from runner.core.columns import Column, lines_of
from runner.core.text import gpus_text, percent, rate, seconds, with_span
from runner.model.expectation import Expectation, ExpectedPoint, Input, Range, Sensitivity
from runner.model.request import Wireup

_MOST_POINTS = 64
_WIREUPS = tuple(each for each in get_args(Wireup) if each != "own")


def _sizes(_ctx: click.Context, _param: click.Parameter, value: str) -> tuple[int, ...]:
    """``16`` or ``1,2,4,8``."""
    words = value.split(",")
    if not all(re.fullmatch(r"\d{1,9}", word.strip(), re.ASCII) for word in words):
        raise click.BadParameter(f"{value!r} is no list of numbers such as 16 or 1,2,4,8")
    if len(words) > _MOST_POINTS:
        raise click.BadParameter(f"{len(words)} numbers of GPUs are more than {_MOST_POINTS}")
    return tuple(int(word) for word in words)


def _assumptions(
    _ctx: click.Context, _param: click.Parameter, texts: tuple[str, ...]
) -> dict[str, tuple[float, float, float]]:
    """``NAME=VALUE`` or ``NAME=LOW:VALUE:HIGH``."""
    values: dict[str, tuple[float, float, float]] = {}
    for text in texts:
        name, _, rest = text.partition("=")
        words = rest.split(":")
        if len(words) not in (1, 3) or not all(re.fullmatch(_NUMBER, word, re.ASCII) for word in words):
            raise click.BadParameter(f"{text!r} is not NAME=VALUE or NAME=LOW:VALUE:HIGH")
        numbers = [float(word) for word in words]
        values[name] = (numbers[0], numbers[len(numbers) // 2], numbers[-1])
    return values


_NUMBER = r"\d{1,15}(\.\d{0,15})?(e-?\d{1,2})?"


@click.command()
@click.option("--gpus", required=True, metavar="N[,N...]", callback=_sizes, help="Numbers of GPUs: 16, or 1,2,4,8.")
@click.option("--nodes", type=click.IntRange(1), help="Nodes of each; default: the fewest that hold them.")
@click.option("--site", shell_complete=by_shell("sites"), help="Site name or file; default: as in submit.")
@click.option("--recipe", shell_complete=by_shell("recipes"), help="Recipe; default: horovod-pytorch, or that of RUN.")
@click.option(
    "--set", "settings", multiple=True, callback=setting, metavar="KEY=VALUE", help="An option of the recipe.",
    shell_complete=by_shell("recipe options"),
)  # fmt: skip
@click.option("--one-gpu", metavar="RUN", shell_complete=by_shell("runs"), help="A measured run of one GPU.")
@click.option("--images-per-s", type=float, help="What one GPU alone reaches.")
@click.option("--step-ms", type=float, help="How long a step of one GPU alone takes.")
@click.option("--input-images-per-s", type=float, help="The most that the input pipeline of a node delivers.")
@path_option("--nccl-tests", metavar=None, help="What all_reduce_perf printed: text or CSV.")
@click.option("--nccl-gpus", type=click.IntRange(1), help="On how many GPUs, if the file does not list them.")
@click.option("--allreduce", metavar="RUN", shell_complete=by_shell("runs"), help="A run of the recipe allreduce.")
@click.option("--wireup", type=click.Choice(_WIREUPS), help="How ranks would meet; with MPI Horovod coordinates by it.")
@click.option(
    "--assume", "assumed", multiple=True, callback=_assumptions, metavar="NAME=VALUE",
    help="An input in place of what is known of it; NAME=LOW:VALUE:HIGH for a range.",
)  # fmt: skip
@JSON
def command(gpus: tuple[int, ...], as_json: bool, **inputs: Any) -> int:
    """Say what a recipe should reach on so many GPUs.

    It is a range, with what it rests on, and what each input does to it. Nothing is run. The time of one GPU's step
    and the times of allreduces are taken as measured where you give them, else from what is published and from the
    site's file. gpu-runner docs compare explains the model.
    """
    from runner.preparation.expectation import expectation

    expected = expectation(gpus, **inputs)
    return answer(expected, expectation_lines(expected, width_of_terminal()), as_json=as_json)


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


def expectation_lines(answer: Expectation, width: int | None) -> list[str]:
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
