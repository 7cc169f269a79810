"""Runs for other programs, read again by parsers of these forms."""

from __future__ import annotations

import csv
import inspect
import io
import json
import re
import subprocess
import sys
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import msgspec
import pytest

from runner.core.errors import Exit
from runner.core.text import printable
from runner.figures.export import COLUMNS, WRITERS
from runner.jobs.directory import Run
from runner.model.figure import figure_keys, figure_of
from runner.model.output import ExportedRank, ExportedRun, ExportedRuns
from runner.model.verdict import Verdict
from tests.support.commands import Call
from tests.support.documents import result
from tests.support.measured_runs import PROGRAM, measured_run

PAGE = (Path(__file__).resolve().parents[4] / "docs/report.md").read_text("utf-8")
BEGAN = datetime(2026, 9, 21, 14, 13, 20, tzinfo=timezone.utc)
HOSTILE = 'a "b"\\ {c}, d\ne\r\t=1+1 \u202e ö \udcff'
RANK = ExportedRank(
    rank=0, node="n0", device_kind="cuda", device_uuid="GPU-0", exit_status=0, window_s=10.0, steps=100, samples=1000,
    compute_s=0.09, sm_clock_mhz_min=1400.0, sm_clock_mhz_max=1410.0, max_rss_bytes=1 << 30,
)  # fmt: skip
MEASURED = Verdict("measured", images_per_s=200.5, steady=True, precision=(199.0, 202.0))
RUN = ExportedRun(
    run="r-2", outcome="measured", reason="", site="s", recipe="r", runtime="native", image="i@sha256:0", gpus=2,
    nodes=1, options={"model": "resnet50", "compile": ""}, batch_per_gpu=10, started=BEGAN, ended=BEGAN,
    precision_low=199.0, precision_high=202.0, window_s=10.0, steady=True, transport="", arm="full",
    **figure_keys(MEASURED, figure_of(MEASURED)),
    ranks=(RANK, msgspec.structs.replace(RANK, rank=1, sm_clock_mhz_min=None, compute_s=None)),
)  # fmt: skip
FAILED = msgspec.structs.replace(
    RUN, run=HOSTILE, outcome="failed", reason=HOSTILE, site=HOSTILE, figure=None, images_per_s=None,
    precision_low=None, precision_high=None, window_s=None, steady=None, started=None, ended=None, batch_per_gpu=None,
    demonstration=HOSTILE, ranks=(msgspec.structs.replace(RANK, node=HOSTILE),),
)  # fmt: skip


def written(form: Any) -> str:
    """As it arrives in a file: what is no UTF-8 is escaped."""
    return WRITERS[form]([RUN, FAILED]).encode("utf-8", "backslashreplace").decode("utf-8")


def test_csv_has_a_row_for_each_rank_of_each_run() -> None:
    rows = list(csv.DictReader(io.StringIO(written("csv"), newline=""), strict=True))
    assert [(row["run"], row["rank"]) for row in rows] == [("r-2", "0"), ("r-2", "1"), (printable(HOSTILE), "0")]
    assert rows[0]["images_per_s"] == "200.5" and rows[2]["images_per_s"] == ""
    assert rows[1]["rank_sm_clock_mhz_min"] == "" and rows[0]["rank_compute_s"] == "0.09"
    assert rows[0]["options"] == "model=resnet50 compile"
    assert rows[0]["started"] == "2026-09-21T14:13:20Z" and rows[0]["steady"] == "true"
    assert [name for name in COLUMNS if f"`{name}`" not in PAGE] == [], "docs/report.md names every column"


def test_json_has_its_version_and_every_value() -> None:
    value = json.loads(written("json"))
    assert msgspec.convert(value, ExportedRuns) == ExportedRuns("gpu-runner-export/1", (RUN, FAILED))


@pytest.mark.parametrize(
    ("verdict", "arm", "unit", "claim"),
    [
        ({}, "full", "images", "performance"),
        ({}, "uncoupled", "images", "uncoupled arm=uncoupled doubts=other-arm"),
        ({"synchronisation": "not-examined"}, "full", "images", "unexamined doubts=not-examined"),
        ({"unit": "tokens"}, "full", "tokens", "performance"),
    ],
)
def test_what_a_figure_may_be_quoted_as_and_its_unit_stand_in_the_line_of_reframe(
    verdict: dict[str, Any], arm: Any, unit: str, claim: str
) -> None:
    given = msgspec.structs.replace(MEASURED, **verdict)
    run = msgspec.structs.replace(RUN, arm=arm, **figure_keys(given, figure_of(given, arm)))
    assert WRITERS["reframe"]([run]).endswith(f"throughput=200.500 {unit}/s claim={claim}\n")
    assert f",{unit},200.5," in WRITERS["csv"]([run])
    assert (WRITERS["csv"]([]).count("\n"), WRITERS["reframe"]([])) == (1, ""), "no run gives valid files"


def test_a_line_of_reframe_changes_no_terminal() -> None:
    """A stranger names a run's directory as it likes."""
    run = msgspec.structs.replace(FAILED, run="r\x1b]0;title\x07\n\x85\u202e")
    line = WRITERS["reframe"]([run])
    assert line == printable(line, keep="\n") and line.count("\n") == 1
    assert line.startswith("gpu-runner: r\\x1b]0;title\\x07__\\u202e outcome=failed ")


def test_the_regular_expression_of_the_page_finds_the_figure_of_a_measured_run_only() -> None:
    given = re.search(r"REGEX = r'(.*)'", PAGE)
    assert given is not None
    lines = written("reframe").splitlines()
    assert len(lines) == 2
    matches = [match for line in lines if (match := re.search(given[1], line))]
    assert [float(match[1]) for match in matches] == [200.5]
    example = re.search(given[1], PAGE)
    assert example is not None and example[1] == "6123.400"


@pytest.fixture
def runs(tmp_path: Path) -> list[str]:
    program = (*PROGRAM, "--api-key", "planted-5ec4e7")
    return [str(measured_run(tmp_path / "runs", place, program=program).path) for place in range(2)]


@pytest.mark.parametrize("form", WRITERS)
def test_runs_are_exported_from_their_directories(form: str, runs: list[str], tmp_path: Path, call: Call) -> None:
    printed = call("export", *runs, "--format", form).out
    assert call("export", *runs, "--format", form, "-o", str(tmp_path / "file")).out == ""
    assert (tmp_path / "file").read_bytes().decode() == printed
    assert "planted" not in printed
    assert all(Path(run).name in printed for run in runs)
    again = call("export", *runs, runs[0], f"{runs[1]}/", "--format", form).out
    assert again == printed, "a run that is named twice is exported once"


def test_the_usual_document_has_the_same_facts(runs: list[str], call: Call) -> None:
    value = json.loads(call("export", *runs, "--format", "json").out)
    assert result(call("export", *runs, "--format", "csv", "--json").out) == value
    rank = value["runs"][0]["ranks"][3]
    assert (rank["node"], rank["device_uuid"], rank["steps"], rank["samples"]) == ("n1", "GPU-3", 1000, 10_000)
    assert value["runs"][0]["options"] == {
        "model": "resnet50", "batch-size": "10", "precision": "fp32", "compile": "", "api-key": "***",
    }  # fmt: skip


def test_the_samples_of_a_rank_are_those_that_it_took(runs: list[str], call: Call) -> None:
    """Of text: another number in each step."""
    for rank in range(4):
        report = Path(runs[0]) / "ranks" / f"{rank}.report.json"
        samples = [100 - rank, 102 - rank] * 50
        report.write_text(json.dumps(json.loads(report.read_text()) | {"group_samples": samples}))
    (run,) = json.loads(call("export", runs[0], "--format", "json").out)["runs"]
    assert ([rank["samples"] for rank in run["ranks"]], run["batch_per_gpu"]) == ([10100, 10000, 9900, 9800], None)


def test_a_run_that_is_not_measured_has_no_figure(runs: list[str], call: Call) -> None:
    """Whatever its verdict holds besides."""
    verdict = Verdict(outcome="not-proven", reasons=("why",), images_per_s=9.0, precision=(8.0, 10.0), window_s=1.0)
    Run(Path(runs[0])).write("verdict.json", verdict)
    (run,) = json.loads(call("export", runs[0], "--format", "json").out)["runs"]
    assert (run["outcome"], run["reason"]) == ("not-proven", "why")
    assert [run[key] for key in ("images_per_s", "precision_low", "precision_high", "window_s")] == [None] * 4


def test_the_page_s_lines_read_what_is_exported(runs: list[str], call: Call) -> None:
    exported = call("export", runs[0], "--format", "json").out
    (block,) = re.findall(r"\n((?:    .*\n)+)", PAGE[PAGE.index("These lines log") :])[:1]
    code = inspect.cleandoc(f"\n{block}")
    assert len(code.splitlines()) == 9
    reading = code[: code.index("# Weights")] + "print(json.dumps([config, metrics, tags]))\n"
    done = subprocess.run([sys.executable, "-c", reading], input=exported, capture_output=True, text=True, check=True)
    config, metrics, tags = json.loads(done.stdout)
    assert (config["model"], config["gpus"], set(metrics), tags) == (
        "resnet50", 4, {"images_per_s", "precision_low", "precision_high"}, ["transport-unproven"],
    )  # fmt: skip
    for rest in re.findall(r"    (import (?:wandb|mlflow)\n(?:    .*\n)+)", PAGE):
        compile(inspect.cleandoc(f"\n    {rest}"), "page", "exec")


WRONG = {
    "neither": (["export", "RUN"], "--format or --bundle"),
    "both": (["export", "RUN", "--format", "csv", "--bundle", "x"], "--format or --bundle"),
    "a key without a bundle": (["export", "RUN", "--format", "csv", "--sign", "x"], "only a bundle is signed"),
    "a bundle elsewhere": (["export", "RUN", "--bundle", "x", "-o", "y"], "its own file"),
    "another form": (["export", "RUN", "--format", "parquet"], "parquet"),
    "a form that is gone": (["export", "RUN", "--format", "openmetrics"], "--format json has every figure"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_usage_is_explained(case: str, call: Call) -> None:
    words, says = WRONG[case]
    assert says in call(*words, code=Exit.USAGE).err
