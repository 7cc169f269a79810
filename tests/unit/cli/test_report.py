"""``report``: what it prints, in any width, and where its files go."""

from __future__ import annotations

import json
from datetime import datetime, timezone
from pathlib import Path

import pytest

from runner.cli.report import report_lines
from runner.cli.results import json_schema
from runner.core.errors import Exit
from runner.figures.report.gather import runs_report, study_report
from runner.model.job import CommandLine
from runner.model.study import Launch, PointFacts, Study
from runner.study import directory
from runner.study.directory import StudyDirectory
from tests.support.commands import Call
from tests.support.json_schema import faults
from tests.support.reports import estimate, loss, measured_run, study_facts


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory of the command, with a measured run ``runs/...-resnet-4``."""
    monkeypatch.chdir(tmp_path)
    measured_run(tmp_path / "runs", "20261122-120000-resnet-4", 4)
    return tmp_path


def test_a_run_is_reported_into_a_directory_of_its_name(place: Path, call: Call) -> None:
    shown = call("report", "runs/20261122-120000-resnet-4").out
    assert "Throughput per GPU at 4 GPUs: " in shown
    assert "report-20261122-120000-resnet-4/: report.html, report.png, report.json, runs.csv, ranks.csv" in shown
    assert (place / "report-20261122-120000-resnet-4/report.html").is_file()


def test_json_is_what_the_schema_says_and_what_the_file_holds(place: Path, call: Call) -> None:
    document = json.loads(call("report", "runs/20261122-120000-resnet-4", "-o", "there", "--json").out)
    assert faults(document, json_schema()) == []
    assert document["result"] == json.loads((place / "there/report.json").read_text())
    assert document["result"]["rows"][0]["state"] == "proven"


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (("runs/20261122-120000-resnet-4", "-o", "."), "holds something else than a report: runs"),
        (("nothing",), 'no run matches "nothing"'),
    ],
)
def test_what_cannot_be_reported_is_refused(words: tuple[str, ...], what: str, place: Path, call: Call) -> None:
    error = call("report", *words, code=Exit.USAGE).err
    assert what in error
    assert sorted(path.name for path in place.iterdir()) == ["runs"]


@pytest.fixture
def study(place: Path) -> StudyDirectory:
    """A study of 1 and 2 GPUs, of which the launch on 2 has no attempt yet."""
    launches = tuple(Launch(f"g000{gpus}-full-r1", gpus, "full", 1, gpus - 1) for gpus in (1, 2))
    command = CommandLine(("scale", "--gpus", "1,2"), str(place))
    asked = Study(
        "1", "", datetime(2026, 11, 22, tzinfo=timezone.utc), command, "local", "r", "separate", (1, 2), ("full",),
        ((),), 1, False, launches,
    )  # fmt: skip
    made = directory.create(place / "studies", "resnet", asked, 1.8e9)
    measured_run(made.launches("g0001-full-r1"), "20261122-120000-resnet-1", 1)
    return made


def test_a_study_is_reported_by_its_id_and_what_is_missing_is_named(
    study: StudyDirectory, place: Path, call: Call
) -> None:
    made = json.loads(call("report", study.path.name, "--json").out)
    assert faults(made, json_schema()) == []
    assert made["result"]["study"]["study"] == study.path.name
    assert [row["state"] for row in made["result"]["rows"]] == ["proven", "missing"]
    assert [each["row"]["gpus"] for each in made["result"]["detailed"]] == [1]
    page = (place / f"report-{study.path.name}/report.html").read_text()
    assert "1 of 2 runs without a proven figure" in page


def test_a_study_and_runs_are_not_one_report(study: StudyDirectory, call: Call) -> None:
    error = call("report", study.path.name, "runs/20261122-120000-resnet-4", code=Exit.USAGE).err
    assert "these are a study and 1 run" in error and "fix:   report each study alone" in error


@pytest.mark.parametrize("width", [40, 120])
def test_it_fits_a_terminal(width: int) -> None:
    points = [
        PointFacts(gpus, "full", (), 3, 3, estimate(2310.0 * gpus), estimate(0.92), estimate(0.96))
        for gpus in (1, 8, 1024)
    ]
    study = study_facts([], points, [loss(1024, 1.0)], demonstration="demonstration, no performance claim: CPU")
    shown = report_lines(study_report(study), width)
    assert max(map(len, shown)) <= width
    assert any("1024" in line and str(2310 * 1024) in line for line in shown)
    assert any("waiting for slower ranks" in line for line in shown)


def test_control_characters_do_not_reach_the_terminal(tmp_path: Path) -> None:
    run = measured_run(tmp_path, "20261122-120000-\x1b[2J-2", 2, host=lambda _node: "n\x1b[1m\u202e")
    assert all(line.isprintable() for line in report_lines(runs_report([(run, "")]), None))
