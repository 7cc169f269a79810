"""``report``: what it prints, in any width, and where its files go."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from runner.cli.report import report_lines
from runner.core.errors import Exit
from runner.figures.report.gather import runs_report, study_report
from runner.model.job import CommandLine
from runner.model.study import PointFacts
from runner.study.directory import StudyDirectory
from tests.support.commands import Call
from tests.support.documents import result
from tests.support.reports import estimate, loss, measured_run, study_facts
from tests.support.studies import left_run, measured, on_disk
from tests.support.studies import study as planned


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory of the command, with a measured run ``runs/...-resnet-4``."""
    monkeypatch.chdir(tmp_path)
    measured_run(tmp_path / "runs", "20261122-120000-resnet-4", 4)
    return tmp_path


RUN = "20261122-120000-resnet-4"


def test_a_run_is_reported_into_a_directory_and_json_is_what_its_file_holds(place: Path, call: Call) -> None:
    shown = call("report", f"runs/{RUN}").out
    assert "Throughput per GPU at 4 GPUs: " in shown
    assert f"report-{RUN}/: report.html, report.png, report.json, runs.csv, ranks.csv" in shown
    made = result(call("report", f"runs/{RUN}", "-o", f"report-{RUN}", "--json").out)
    assert made == json.loads((place / f"report-{RUN}/report.json").read_text())
    assert made["rows"][0]["state"] == "proven"


@pytest.fixture
def study(place: Path) -> StudyDirectory:
    """A study of 1 and 2 GPUs, of which the launch on 2 has no attempt yet."""
    made = on_disk(place / "studies", planned((1, 2), 1, command=CommandLine(("scale", "--gpus", "1,2"), str(place))))
    key = "g0001-full-r1"
    made.note("launched", key, [measured_run(made.launches(key), "20261122-120000-resnet-1", 1)])
    return made


def test_a_study_is_reported_by_its_id_and_what_is_missing_is_named(
    study: StudyDirectory, place: Path, call: Call
) -> None:
    made = result(call("report", study.path.name, "--json").out)
    assert made["study"]["study"] == study.path.name
    assert [row["state"] for row in made["rows"]] == ["proven", "missing"]
    assert [each["row"]["gpus"] for each in made["detailed"]] == [1]
    page = (place / f"report-{study.path.name}/report.html").read_text()
    assert "1 of 2 runs without a proven figure" in page


def test_without_a_name_the_study_of_the_newest_run_is_reported(study: StudyDirectory, call: Call) -> None:
    left_run(study, "g0002-full-r1", measured(100.0))
    assert result(call("report", "--json").out)["study"]["study"] == study.path.name


def test_what_cannot_be_reported_is_refused(study: StudyDirectory, place: Path, call: Call) -> None:
    run = f"runs/{RUN}"
    for words, what in (
        ((run, "-o", "."), "holds something else than a report: runs"),
        (("nothing",), 'no run matches "nothing"'),
        ((study.path.name, run), "these are a study and 1 run\n  fix:   report each study alone"),
    ):
        assert what in call("report", *words, code=Exit.USAGE).err
        assert not list(place.glob("report*"))


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
