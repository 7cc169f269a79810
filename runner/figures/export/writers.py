"""One writer for each form: from exported runs to text. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from runner.core.columns import Column, as_csv
from runner.model.figure import Doubt, in_codes, in_words
from runner.model.output import ExportedRank, ExportedRun, ExportedRuns, Format

_OF_RUN = (
    "run", "outcome", "reason", "site", "recipe", "runtime", "image", "gpus", "nodes", "batch_per_gpu", "started",
    "ended", "unit", "images_per_s", "precision_low", "precision_high", "steady", "transport", "demonstration",
    "synchronisation", "arm", "doubts",
)  # fmt: skip
Facts = Mapping[str, Any]  # of a run, or of a rank
_OF_RANK = {name if name in ("rank", "node") else f"rank_{name}": name for name in ExportedRank.__struct_fields__}


def _of(place: int, key: str) -> Callable[[tuple[Facts, Facts]], Any]:
    return lambda row: row[place][key]


_COLUMNS = (
    Column("", values={name: _of(0, name) for name in _OF_RUN}),
    Column("", values={name: _of(1, key) for name, key in _OF_RANK.items()}),
)
COLUMNS = tuple(name for column in _COLUMNS for name, _ in column.csv_values())


def csv_of(runs: Sequence[ExportedRun]) -> str:
    """One row for each rank of each run: the run's columns are equal in all rows of the run."""
    facts = [msgspec.to_builtins(run) | {"doubts": in_words(_doubts(run))} for run in runs]
    return as_csv(_COLUMNS, [(run, rank) for run in facts for rank in run["ranks"]])


def as_json(runs: Sequence[ExportedRun]) -> str:
    """One document; its ``schema`` names the version."""
    return json.dumps(msgspec.to_builtins(ExportedRuns("gpu-runner-export/1", tuple(runs))), indent=1) + "\n"


def as_reframe(runs: Sequence[ExportedRun]) -> str:
    """A line for each run, for a regular expression: ``REFRAME``. ``none`` stands where there is no figure."""
    return "".join(
        f"gpu-runner: {_word(run.run)} outcome={run.outcome} gpus={run.gpus} "
        f"throughput={'none' if run.images_per_s is None else f'{run.images_per_s:.3f}'} {run.unit}/s "
        f"claim={_claim(run)}{'' if run.arm == 'full' else f' arm={run.arm}'}"
        f"{f' doubts={in_codes(_doubts(run))}' if _doubts(run) else ''}\n"
        for run in runs
    )


WRITERS: dict[Format, Callable[[Sequence[ExportedRun]], str]] = {
    "csv": csv_of,
    "json": as_json,
    "reframe": as_reframe,
}


def _claim(run: ExportedRun) -> str:
    """What the figure may be quoted as; of an arm that is not training as it is, that arm."""
    return run.figure.claim if run.figure else "demonstration" if run.demonstration else "performance"


def _doubts(run: ExportedRun) -> tuple[Doubt, ...]:
    return run.figure.doubts if run.figure else ()


def _word(text: str) -> str:
    return re.sub(r"\s", "_", text) or "-"
