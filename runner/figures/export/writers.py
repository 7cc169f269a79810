"""One writer for each form: from exported runs to text. Pure."""

from __future__ import annotations

import csv
import io
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from runner.model.exported import ExportedRank, ExportedRun, ExportedRuns, Format
from runner.model.figure import Doubt, in_codes, in_words

_OF_RUN = (
    "run", "outcome", "reason", "site", "recipe", "runtime", "image", "gpus", "nodes", "batch_per_gpu", "started",
    "ended", "unit", "images_per_s", "precision_low", "precision_high", "steady", "transport", "demonstration",
    "synchronisation", "arm", "doubts",
)  # fmt: skip
COLUMNS = (*_OF_RUN, *(name if name in ("rank", "node") else f"rank_{name}" for name in ExportedRank.__struct_fields__))


def as_csv(runs: Sequence[ExportedRun]) -> str:
    """One row for each rank of each run (RFC 4180): the run's columns are equal in all rows of the run."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\r\n")
    writer.writerow(COLUMNS)
    for run in runs:
        facts = msgspec.to_builtins(run) | {"doubts": in_words(_doubts(run))}
        own = [facts[name] for name in _OF_RUN]
        writer.writerows([_cell(each) for each in (*own, *rank.values())] for rank in facts["ranks"])
    return out.getvalue()


def as_json(runs: Sequence[ExportedRun]) -> str:
    """One document; its ``schema`` names the version."""
    return json.dumps(msgspec.to_builtins(ExportedRuns("gpu-runner-export/1", tuple(runs))), indent=1) + "\n"


def as_mllog(runs: Sequence[ExportedRun]) -> str:
    """Lines as MLPerf's logging library writes them (mlcommons/logging, mllog.py), with the throughput where NVIDIA's
    mlperf-common has it: in ``tracked_stats``. They are no MLPerf result, and say so.
    """
    return "".join(f"{line}\n" for run in runs for line in _mllog(run))


def as_openmetrics(runs: Sequence[ExportedRun]) -> str:
    """An OpenMetrics text file (1.0), as node_exporter and Prometheus read it; without times."""
    lines: list[str] = []
    for name, (unit, help_text, samples) in _METRICS.items():
        lines += [f"# TYPE {name} gauge", *([f"# UNIT {name} {unit}"] if unit else []), f"# HELP {name} {help_text}"]
        lines += [
            f"{name}{{{_labels(labels)}}} {_number(value)}"
            for run in runs
            for labels, value in samples(run)
            if value is not None
        ]
    return "\n".join([*lines, "# EOF", ""])


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
    "csv": as_csv,
    "json": as_json,
    "mllog": as_mllog,
    "openmetrics": as_openmetrics,
    "reframe": as_reframe,
}


def _claim(run: ExportedRun) -> str:
    """What the figure may be quoted as; of an arm that is not training as it is, that arm."""
    return run.figure.claim if run.figure else "demonstration" if run.demonstration else "performance"


def _doubts(run: ExportedRun) -> tuple[Doubt, ...]:
    return run.figure.doubts if run.figure else ()


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


def _mllog(run: ExportedRun) -> Iterator[str]:
    began_ms = int(run.started.timestamp() * 1000) if run.started else 0
    ended_ms = int(run.ended.timestamp() * 1000) if run.ended else began_ms
    about: dict[str, Any] = {"run": run.run, "no_mlperf_result": True, "demonstration": run.demonstration}
    if run.arm != "full":
        about["arm"] = run.arm
    if run.synchronisation:
        about["synchronisation"] = run.synchronisation
    if _doubts(run):
        about["doubts"] = in_codes(_doubts(run))

    def line(kind: str, time_ms: int, key: str, value: Any, **metadata: Any) -> str:
        event = {
            "namespace": "gpu-runner", "time_ms": time_ms, "event_type": kind, "key": key, "value": value,
            "metadata": {"file": "gpu-runner", "lineno": 0, **about, **metadata},
        }  # fmt: skip
        return f":::MLLOG {json.dumps(event)}"

    options = ("model", "precision", "image-size")
    facts = {"site": run.site, "recipe": run.recipe, "gpus": run.gpus, "nodes": run.nodes, "image": run.image}
    facts |= {name: run.options[name] for name in options if name in run.options}
    yield line("INTERVAL_START", began_ms, "launch", None, **facts)
    if run.batch_per_gpu is not None:
        yield line("POINT_IN_TIME", began_ms, "global_batch_size", run.batch_per_gpu * len(run.ranks))
    if run.images_per_s is not None:
        yield line("POINT_IN_TIME", ended_ms, "tracked_stats", {"throughput": run.images_per_s}, step=1, unit=run.unit)
    status = "success" if run.outcome in ("measured", "ran") else "aborted"
    yield line("INTERVAL_END", ended_ms, "launch", run.outcome, status=status, reason=run.reason)


Samples = Iterable[tuple[Mapping[str, str], float | None]]


def _labels_of(run: ExportedRun) -> dict[str, str]:
    return {"run": run.run, "site": run.site, "recipe": run.recipe, "gpus": str(run.gpus)}


def _throughput(run: ExportedRun) -> Samples:
    labels = {
        **_labels_of(run),
        "unit": run.unit,
        "claim": _claim(run),
        "arm": run.arm,
        "doubts": in_codes(_doubts(run)),
    }
    return [(labels, run.images_per_s)]


def _limits(run: ExportedRun) -> Samples:
    for limit, value in (("low", run.precision_low), ("high", run.precision_high)):
        yield {**_labels_of(run), "unit": run.unit, "limit": limit}, value


def _proven(run: ExportedRun) -> Samples:
    return [({**_labels_of(run), "outcome": run.outcome, "nodes": str(run.nodes)}, float(run.outcome == "measured"))]


def _window(run: ExportedRun) -> Samples:
    return [(_labels_of(run), run.window_s)]


def _of_ranks(value: Callable[[ExportedRank], float | None]) -> Callable[[ExportedRun], Samples]:
    return lambda run: [
        ({"run": run.run, "rank": str(each.rank), "node": each.node}, value(each)) for each in run.ranks
    ]


_METRICS: dict[str, tuple[str, str, Callable[[ExportedRun], Samples]]] = {
    "gpu_runner_measured": ("", "1 where the run is measured, else 0.", _proven),
    "gpu_runner_throughput_per_second": ("", "Throughput of all ranks, where it is proven.", _throughput),
    "gpu_runner_precision_per_second": ("", "95 % interval of the throughput within this run.", _limits),
    "gpu_runner_window_seconds": ("seconds", "Length of the window of the figure.", _window),
    "gpu_runner_rank_compute_seconds": (
        "seconds", "Own computing of a rank in a step, median.", _of_ranks(lambda rank: rank.compute_s),
    ),
    "gpu_runner_rank_exit_status": (
        "", "Exit status of a rank.",
        _of_ranks(lambda rank: None if rank.exit_status is None else float(rank.exit_status)),
    ),
}  # fmt: skip


def _labels(labels: Mapping[str, str]) -> str:
    return ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items())


def _escaped(value: str) -> str:
    plain = value.encode("utf-8", "backslashreplace").decode("utf-8")  # a name may hold any byte
    return plain.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _number(value: float) -> str:
    return repr(float(value)) if math.isfinite(value) else "NaN"


def _word(text: str) -> str:
    return re.sub(r"\s", "_", text) or "-"
