"""One writer for each form: from exported runs to text. Pure."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from runner.model.exported import ExportedRank, ExportedRun, ExportedRuns, Format

_OF_RUN = (
    "run", "outcome", "reason", "site", "recipe", "runtime", "image", "gpus", "nodes", "batch_per_gpu", "started",
    "ended", "unit", "images_per_s", "precision_low", "precision_high", "steady", "transport", "demonstration",
    "synchronisation", "arm",
)  # fmt: skip
COLUMNS = (*_OF_RUN, *(name if name in ("rank", "node") else f"rank_{name}" for name in ExportedRank.__struct_fields__))


def as_csv(runs: Sequence[ExportedRun]) -> str:
    """One row for each rank of each run (RFC 4180): the run's columns are equal in all rows of the run."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\r\n")
    writer.writerow(COLUMNS)
    for run in runs:
        facts = msgspec.to_builtins(run)
        own = [facts[name] for name in _OF_RUN]
        writer.writerows([_cell(each) for each in (*own, *rank.values())] for rank in facts["ranks"])
    return out.getvalue()


def as_json(runs: Sequence[ExportedRun]) -> str:
    """One document; its ``schema`` names the version."""
    return json.dumps(msgspec.to_builtins(ExportedRuns("gpu-runner-export/1", tuple(runs))), indent=1) + "\n"


def as_reframe(runs: Sequence[ExportedRun]) -> str:
    """A line for each run, for a regular expression: ``REFRAME``. ``none`` stands where there is no figure."""
    return "".join(
        f"gpu-runner: {_word(run.run)} outcome={run.outcome} gpus={run.gpus} "
        f"throughput={'none' if run.images_per_s is None else f'{run.images_per_s:.3f}'} {run.unit}/s "
        f"claim={_claim(run)}{'' if run.arm == 'full' else f' arm={run.arm}'}\n"
        for run in runs
    )


WRITERS: dict[Format, Callable[[Sequence[ExportedRun]], str]] = {
    "csv": as_csv,
    "json": as_json,
    "reframe": as_reframe,
}


def _claim(run: ExportedRun) -> str:
    """What the figure may be quoted as; of an arm that is not training as it is, that arm."""
    if run.demonstration:
        return "demonstration"
    return run.arm if run.arm != "full" else "unexamined" if run.synchronisation else "performance"


def never_a_formula(text: str) -> str:
    """Text for a cell of CSV: a spreadsheet would compute what begins like a formula."""
    return f"'{text}" if text.startswith(("=", "+", "-", "@", "\t", "\r")) else text


def _cell(value: Any) -> Any:
    """A value as CSV has it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return never_a_formula(value)
    return "" if value is None else value


def _word(text: str) -> str:
    return re.sub(r"\s", "_", text) or "-"
