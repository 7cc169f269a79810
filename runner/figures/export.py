"""Runs in forms that other programs read: from their directories to CSV, JSON and lines for ReFrame."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from statistics import median
from typing import Any

import msgspec

from runner.core.columns import Column, as_csv
from runner.core.errors import UnknownStateError
from runner.core.hide import hidden_command
from runner.core.invocation import PROGRAM
from runner.core.text import decimals, printable
from runner.jobs.collect import nodes_of
from runner.jobs.comparison import batch_of
from runner.jobs.directory import Run, Studies, utc
from runner.jobs.life import Standing, standing
from runner.model.figure import Doubt, figure_keys, in_codes, in_words
from runner.model.output import ExportedRank, ExportedRun, ExportedRuns, Format
from runner.model.records import ExitRecord, GpuSummary, NodeRecord, Report, StartRecord
from runner.planning.options import options_of

_OF_RUN = (
    "run", "outcome", "reason", "site", "recipe", "runtime", "image", "gpus", "nodes", "batch_per_gpu", "started",
    "ended", "unit", "images_per_s", "precision_low", "precision_high", "steady", "transport", "demonstration",
    "synchronisation", "arm", "doubts", "options",
)  # fmt: skip
_OF_RANK = {name if name in ("rank", "node") else f"rank_{name}": name for name in ExportedRank.__struct_fields__}
COLUMNS = (*_OF_RUN, *_OF_RANK)


def exported_run(run: Run, studies: Studies | None = None) -> ExportedRun:
    """A run that has ended. ``studies``: as ``seen`` of ``Run.of_study``.

    Raises:
        UnknownStateError: it has no verdict yet.
        UsageError: its plan cannot be read.
    """
    verdict = standing(run)
    if isinstance(verdict, Standing):
        raise UnknownStateError(f"{run.run_id} has no verdict yet", fix=f"`{PROGRAM} wait {run.run_id}`, then export")
    plan, records, marker = run.needed_plan(), run.records, run.marker
    starts = records.starts
    reports = records.records("report", Report, range(plan.tasks))
    exits = records.records("exit", ExitRecord)
    watchers = [rank for rank, start in starts.items() if start.local_rank == 0]
    watched = records.records("node", NodeRecord, watchers)
    gpus = {gpu.uuid: gpu for record in watched.values() for gpu in record.gpus if gpu.uuid}
    nodes = nodes_of(starts, plan.tasks_per_node)
    ranks = tuple(
        _rank(rank, nodes.get(rank, ""), starts.get(rank), reports.get(rank), exits.get(rank), gpus)
        for rank in range(plan.tasks)
    )
    recorded = batch_of(run)
    batch = plan.samples_per_step if recorded.mean is None else recorded.mean
    is_measured = verdict.outcome == "measured"
    low, high = verdict.precision if verdict.precision and is_measured else (None, None)
    return ExportedRun(
        run=run.run_id,
        outcome=verdict.outcome,
        reason=verdict.reasons[0] if verdict.reasons else "",
        site=plan.site,
        recipe=plan.recipe,
        runtime=plan.runtime,
        image=plan.image.pinned,
        gpus=plan.gpus,
        nodes=plan.nodes,
        options=options_of(hidden_command(plan.program)),
        batch_per_gpu=None if recorded.varies or recorded.apart > 1.0 or batch is None or batch % 1 else int(batch),
        started=utc(starts[0].time_s if 0 in starts else None),
        ended=utc(marker.end_s if marker else None),
        precision_low=low,
        precision_high=high,
        window_s=verdict.window_s if is_measured else None,
        steady=verdict.steady if is_measured else None,
        transport=verdict.transport,
        arm=plan.arms[-1],
        **figure_keys(verdict, run.figure_by(verdict, plan, studies)),
        ranks=ranks,
    )


def _rank(
    rank: int,
    node: str,
    start: StartRecord | None,
    report: Report | None,
    ended: ExitRecord | None,
    gpus: Mapping[str, GpuSummary],
) -> ExportedRank:
    ends_s, quarters = (report.ends_s, report.compute_quarters_p50_s) if report else ((), ())
    steps = len(ends_s) * report.group_steps if report and ends_s and report.group_steps else None
    batch, counted = (report.batch_size, sum(report.group_samples)) if report else (None, 0)
    uuid = (report.device_uuid if report else None) or (start.device_uuid if start else None) or ""
    seen = gpus.get(uuid, GpuSummary())
    return ExportedRank(
        rank=rank,
        node=node,
        device_kind=report.device_kind if report else start.device_kind if start else "",
        device_uuid=uuid,
        exit_status=ended.status if ended else None,
        window_s=ends_s[-1] if ends_s else None,
        steps=steps,
        samples=counted or (steps * batch if steps is not None and batch else None),
        compute_s=median(quarters) if quarters else None,
        sm_clock_mhz_min=seen.sm_clock_mhz_min,
        sm_clock_mhz_max=seen.sm_clock_mhz_max,
        max_rss_bytes=ended.max_rss_bytes if ended else None,
    )


def csv_of(runs: Sequence[ExportedRun]) -> str:
    """One row for each rank of each run: the run's columns are equal in all rows of the run."""
    rows = []
    for run in runs:
        options = " ".join(f"{name}={value}" if value else name for name, value in run.options.items())
        facts = msgspec.to_builtins(run) | {"doubts": in_words(_doubts(run)), "options": options}
        of_run = {name: facts[name] for name in _OF_RUN}
        rows += [of_run | {name: rank[key] for name, key in _OF_RANK.items()} for rank in facts["ranks"]]
    column = Column[Mapping[str, Any]]("", values={name: itemgetter(name) for name in COLUMNS})
    return as_csv([column], rows)


def as_json(runs: Sequence[ExportedRun]) -> str:
    """One document; its ``schema`` names the version."""
    return json.dumps(msgspec.to_builtins(ExportedRuns("gpu-runner-export/1", tuple(runs))), indent=1) + "\n"


def as_reframe(runs: Sequence[ExportedRun]) -> str:
    """A line for each run, for a regular expression. ``none`` stands where there is no figure."""
    lines = []
    for run in runs:
        name = printable(re.sub(r"\s", "_", run.run)) or "-"
        throughput = (
            "none" if run.images_per_s is None else f"{run.images_per_s:.{max(3, decimals(run.images_per_s))}f}"
        )
        # What the figure may be quoted as; of an arm that is not training as it is, that arm.
        claim = run.figure.claim if run.figure else "demonstration" if run.demonstration else "performance"
        arm = "" if run.arm == "full" else f" arm={run.arm}"
        doubts = f" doubts={in_codes(_doubts(run))}" if _doubts(run) else ""
        lines.append(
            f"gpu-runner: {name} outcome={run.outcome} gpus={run.gpus} throughput={throughput} {run.unit}/s "
            f"claim={claim}{arm}{doubts}\n"
        )
    return "".join(lines)


def _doubts(run: ExportedRun) -> tuple[Doubt, ...]:
    return run.figure.doubts if run.figure else ()


WRITERS: dict[Format, Callable[[Sequence[ExportedRun]], str]] = {"csv": csv_of, "json": as_json, "reframe": as_reframe}
