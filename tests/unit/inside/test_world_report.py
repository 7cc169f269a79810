"""The report of a program that measures nothing: a record that the verdict can read, named by the launcher's rank."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from gpu_runner_inside import world_report

from tests.support.json_schema import check


def test_a_report_is_a_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUNNER_RUN_DIR", str(tmp_path))
    monkeypatch.setenv("RUNNER_RANK", "3")
    monkeypatch.setenv("RUNNER_HOST", "n1")
    world_report.leave("horovod", (0, 1, 0), "cpu", 0.5, framework_version="2")
    record = json.loads((tmp_path / "ranks" / "3.report.json").read_text())
    check(record)
    assert (record["rank"], record["world_rank"], record["world_size"]) == (3, 0, 1), (
        "Horovod fell back to a world of 1"
    )
    assert (record["host"], record["framework_version"]) == ("n1", "2")


def test_outside_of_a_job_there_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RUNNER_RUN_DIR", raising=False)
    monkeypatch.chdir(tmp_path)
    world_report.leave("horovod", (0, 1, 0), "cpu", 0.5)
    assert not list(tmp_path.iterdir())
