"""In what single runs differ that no curve may join: their model, batch, precision and the like. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from runner.figures.compare.fit import FIGURE_OPTIONS
from runner.jobs.code_record import is_source
from runner.model.plan import Plan
from runner.model.report import Row
from runner.planning.options import options_of

NONE = "none"


def kind_of(plan: Plan | None, batch: int | None, demonstration: str) -> dict[str, str]:
    """Name -> value of each; without a plan nothing is known.

    Args:
        batch: samples of a rank in a step, as a rank reported it.
    """
    if plan is None:
        return {}
    options = options_of(plan.program)
    known = {name: options.get(name, NONE) for name in FIGURE_OPTIONS}
    samples = plan.samples_per_step if batch is None else batch
    return {
        "recipe": plan.recipe,
        "program": NONE if plan.recipe else _named(plan.program),
        **known,
        "batch": NONE if samples is None else str(samples),
        "device": f"{plan.device} {plan.gpu_type}".strip(),
        "site": plan.site,
        "claim": "demonstration" if demonstration else "performance",
    }


def _named(program: Sequence[str]) -> str:
    """What a command without a recipe runs: the module behind ``-m``, the first file of source, or its first word."""
    words = [*program, ""]
    if "-m" in program:
        return words[words.index("-m") + 1]
    return next(filter(is_source, program), words[0])


def with_kinds(rows: Sequence[tuple[Row, dict[str, str]]]) -> tuple[Row, ...]:
    """The rows, each with that of its kind as settings in which those with a figure differ."""
    measured = [kind for row, kind in rows if row.images_per_s is not None]
    names = [name for name in (measured[0] if measured else ()) if len({kind[name] for kind in measured}) > 1]
    if not names:
        return tuple(row for row, _ in rows)
    return tuple(
        msgspec.structs.replace(row, settings=tuple((name, kind.get(name, NONE)) for name in names))
        for row, kind in rows
    )
