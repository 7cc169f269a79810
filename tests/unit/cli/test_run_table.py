"""The list of runs in a pipe, in 80 columns and in 40."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from runner.cli.status import run_lines
from runner.model.figure import Figure
from runner.model.output import ListedRun

NOW = datetime(2026, 11, 22, 9, 0, 0, tzinfo=timezone.utc)


def row(name: str, *, ago_s: int = 60, **changes: Any) -> ListedRun:
    fields: dict[str, Any] = {
        "run": f"20261122-085900-{name}-16", "directory": "/r", "name": name, "job": "4711", "state": "ended",
        "reason": "", "gpus": 16, "site": "technion", "submitted": NOW - timedelta(seconds=ago_s),
        "outcome": "ran",
    }  # fmt: skip
    return ListedRun(**(fields | changes))


RUNS = (
    row("bert", ago_s=12, state="running", outcome=None, job="12.pbs-server"),
    row("resnet50", ago_s=600, outcome="measured", figure=Figure(5321.07, "images")),
    row("probe", ago_s=7200, outcome="measured", figure=Figure(10.0, "images").labelled("CPU"), job="", gpus=2),
    row("old", ago_s=86_400 * 3, outcome="failed", submitted=None),
)


def test_a_pipe_gets_every_column() -> None:
    assert run_lines(RUNS, NOW, None) == [
        "RUN                          NAME      JOB   STATE    GPUS  SITE         AGE  RESULT",
        "20261122-085900-bert-16      bert      12    running    16  technion    12 s  -",
        "20261122-085900-resnet50-16  resnet50  4711  ended      16  technion  10 min  5321 images/s",
        "20261122-085900-probe-16     probe     -     ended       2  technion     2 h  10.0 images/s (demo)",
        "20261122-085900-old-16       old       4711  ended      16  technion       -  failed",
    ]


def test_a_job_that_waits_says_why() -> None:
    waits = row("bert", state="pending", reason="Resources", outcome=None)
    long = row("x", state="pending", reason="Not Running: Insufficient amount of resource: ngpus", outcome=None)
    assert run_lines((waits, long), NOW, None) == [
        "RUN                      NAME  JOB   STATE    GPUS  SITE        AGE  RESULT",
        "20261122-085900-bert-16  bert  4711  pending    16  technion  1 min  (Resources)",
        "20261122-085900-x-16     x     4711  pending    16  technion  1 min  (Insufficient amount of resour...)",
    ]
    assert run_lines((waits,), NOW, 40) == ["20261122-085900-bert-16", "  pending (Resources)  16 GPUs  1 min"]


def test_80_columns_do_without_the_name_that_the_id_has_and_a_result_stands_for_the_state() -> None:
    assert run_lines((RUNS[0], row("resnet50")), NOW, 80)[0].split() == [
        "RUN",
        "JOB",
        "STATE",
        "GPUS",
        "SITE",
        "AGE",
        "RESULT",
    ]
    assert run_lines(RUNS[:2], NOW, 80) == [
        "RUN                          JOB   GPUS  SITE         AGE  RESULT",
        "20261122-085900-bert-16      12      16  technion    12 s  running",
        "20261122-085900-resnet50-16  4711    16  technion  10 min  5321 images/s",
    ]


def test_40_columns_hold_a_run_in_two_lines() -> None:
    assert run_lines(RUNS, NOW, 40) == [
        "20261122-085900-bert-16",
        "  running  16 GPUs  12 s  technion",
        "20261122-085900-resnet50-16",
        "  5321 images/s  16 GPUs  10 min",
        "20261122-085900-probe-16",
        "  10.0 images/s (demo)  2 GPUs  2 h",
        "20261122-085900-old-16",
        "  failed  16 GPUs  -  technion  job 4711",
    ]


@pytest.mark.parametrize("width", [30, 45, 60, 75, 90, None])
def test_no_line_is_wider_than_the_terminal_but_for_ids_and_none_holds_a_control_character(width: int | None) -> None:
    made = run_lines((*RUNS, row("x\x1b[2J\ny")), NOW, width)
    assert all(line.isprintable() and len(line) <= (width or 999) for line in made), made
    long = row("a-name-as-long-as-names-can-be-64-characters-of-it")
    assert any(long.run in line for line in run_lines((long,), NOW, width))
