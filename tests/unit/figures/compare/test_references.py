"""References: strict files, and figures against them by the interval."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest

from runner.cli import run as runner
from runner.core.errors import Exit
from runner.model.job import CodeRecord
from tests.support.documents import result
from tests.support.measured_runs import measured_run

ONE = """\
references:
- site: s
  recipe: r
  gpus: 4
  options: {model: resnet50, batch-size: 10, compile: true}
  value: VALUE
  unit: images/s
  lower: -0.05
  source: https://example.org/run
  date: 2026-11-22
"""


@pytest.fixture(autouse=True)
def _own_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUNNER_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("RUNNER_CONFIG", str(tmp_path / "config.yaml"))


def against(tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str], *, runs: int = 1, code: int) -> Any:
    (tmp_path / "references.yaml").write_text(text)
    names = [str(measured_run(tmp_path / "runs", place).path) for place in range(runs)]
    assert runner(["compare", ",".join(names), "--reference", "--json"]) == code
    return result(capsys.readouterr().out)


@pytest.mark.parametrize(
    ("value", "code", "judgement"),
    [(400, Exit.GOOD, "good"), (500, Exit.BELOW_REFERENCE, "below"), (421, Exit.UNKNOWN, "cannot tell")],
)
@pytest.mark.parametrize("runs", [1, 3])
def test_a_figure_is_judged_by_its_interval(
    tmp_path: Path, value: int, code: Exit, judgement: str, runs: int, capsys: pytest.CaptureFixture[str]
) -> None:
    (found,) = against(tmp_path, ONE.replace("VALUE", str(value)), capsys, runs=runs, code=code)["references"]
    assert found["judgement"] == judgement
    assert found["at_least"] == pytest.approx(0.95 * value)
    assert found["interval_of"] == ("launches" if runs == 3 else "this run")
    assert found["low"] < found["figure"] < found["high"]


def test_what_a_file_of_references_holds_changes_no_terminal_and_no_file_for_ci(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Marks that reorder a line, and control characters, in a source and in a recipe's name of another entry."""
    hostile = 'run\u202e "x\x1b[2J\u2066'
    text = ONE.replace("VALUE", "400").replace("https://example.org/run", json.dumps(hostile))
    (tmp_path / "references.yaml").write_text(text, "utf-8")
    run = str(measured_run(tmp_path / "runs", 0).path)
    files = tmp_path / "junit.xml", tmp_path / "out.md"
    assert runner(["compare", run, "--reference", "--junit", str(files[0]), "--markdown", str(files[1])]) == Exit.GOOD
    (tmp_path / "references.yaml").write_text(text.replace("recipe: r", f"recipe: {json.dumps(hostile)}"), "utf-8")
    assert runner(["compare", run, "--reference"]) == Exit.USAGE
    printed = capsys.readouterr()
    assert "\\u202e" in printed.out and "\\u202e" in printed.err
    for shown in (printed.out, printed.err, *(file.read_text("utf-8") for file in files)):
        assert all(each.isprintable() or each == "\n" for each in shown), shown


def test_a_figure_above_its_reference_is_noted_and_a_unit_for_each_gpu_counts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = ONE.replace("VALUE", "50").replace("images/s", "images/s/GPU") + "  upper: 0.1\n"
    (found,) = against(tmp_path, text, capsys, code=Exit.GOOD)["references"]
    assert found["above"]
    assert found["figure"] == pytest.approx(100.0, rel=0.02)


def test_the_reference_that_names_most_options_counts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wide = ONE.replace("VALUE", "900").replace(", batch-size: 10, compile: true", "")
    narrow = ONE.replace("VALUE", "390").removeprefix("references:\n")
    (found,) = against(tmp_path, wide + narrow, capsys, code=Exit.GOOD)["references"]
    assert found["value"] == 390.0


def test_a_figure_of_another_arm_is_not_held_against_one_of_training(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ranks that train each for itself are faster: that would hide what the reference is there to find."""
    run = measured_run(tmp_path / "runs", 0)
    program = (*run.needed_plan().program, "--arms=uncoupled")
    run.write("plan.json", msgspec.structs.replace(run.needed_plan(), arms=("uncoupled",), program=program))
    file = tmp_path / "references.yaml"
    file.write_text(ONE.replace("VALUE", "400"))
    assert runner(["compare", str(run.path), "--reference"]) == Exit.USAGE
    assert "a figure of the arm uncoupled: a reference is one of training" in capsys.readouterr().err
    file.write_text(ONE.replace("VALUE", "400").replace("compile: true", "compile: true, arms: uncoupled"))
    assert runner(["compare", str(run.path), "--reference"]) == Exit.GOOD


WRONG = {
    "none of the site": (ONE.replace("site: s", "site: t"), "it has none of site s"),
    "none of the size": (ONE.replace("gpus: 4", "gpus: 8"), "of this site it has r on 8 GPUs"),
    "another unit": (
        ONE.replace("images/s", "tokens/s"),
        "with figures in images/s and its options; for these it has only tokens/s, model=resnet50, batch-size=10, comp",
    ),
    "no unit": (ONE.replace("images/s", "miles/h"), "unit"),
    "another model": (
        ONE.replace("resnet50", "vgg16"),
        "its options; for these it has only images/s, model=vgg16, batch",
    ),
    "two": (ONE + ONE.removeprefix("references:\n"), "2 references fit"),
    "an unknown key": (ONE + "  bound: 1\n", "bound"),
    "no source": (ONE.replace("  source: https://example.org/run\n", ""), "source"),
    "a lower bound above": (ONE.replace("-0.05", "0.05"), "lower"),
    "not a number": (ONE.replace("VALUE", ".nan"), "expected `float`"),
    "without an end": (ONE.replace("VALUE", ".inf"), "value"),
    "no date": (ONE.replace("2026-11-22", "yesterday"), "date"),
    "a day that is none": (ONE.replace("2026-11-22", "2026-11-31"), "there is no day 2026-11-31"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_file_that_does_not_fit_is_explained(tmp_path: Path, case: str, capsys: pytest.CaptureFixture[str]) -> None:
    text, says = WRONG[case]
    (tmp_path / "references.yaml").write_text(text.replace("VALUE", "400"))
    assert runner(["compare", str(measured_run(tmp_path / "runs", 0).path), "--reference"]) == Exit.USAGE
    assert says.lower() in capsys.readouterr().err.lower()


def test_a_copy_of_a_run_is_no_further_launch_and_a_missing_file_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = measured_run(tmp_path / "runs", 0)
    assert runner(["compare", str(run.path), "--reference"]) == Exit.USAGE
    assert str(tmp_path / "references.yaml") in capsys.readouterr().err
    (tmp_path / "references.yaml").write_text(ONE.replace("VALUE", "400"))
    copies = [shutil.copytree(run.path, tmp_path / f"{run.run_id}{number}") for number in range(2)]
    assert runner(["compare", ",".join(map(str, (run.path, *copies))), "--reference"]) == Exit.USAGE
    assert "are one launch: the same ranks began at the same instant" in capsys.readouterr().err


def test_launches_of_other_code_are_refused_without_an_override_that_is_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "references.yaml").write_text(ONE.replace("VALUE", "400"))
    runs = [measured_run(tmp_path / "runs", place) for place in range(2)]
    for run in runs:
        run.write("code.json", CodeRecord("/home/u/work", run.run_id, "main", dirty=False))
    assert runner(["compare", ",".join(str(run.path) for run in runs), "--reference"]) == Exit.REFUSED
    said = capsys.readouterr().err
    assert said.count(" has another commit than ") == 1
    assert "--force" not in said
