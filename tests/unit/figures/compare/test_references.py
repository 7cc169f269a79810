"""References: strict files, and figures against them by the interval."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from runner.core.errors import Exit
from runner.figures.compare.references import may_fit
from runner.jobs.directory import Run
from runner.model.expectation import Reference
from runner.model.job import CodeRecord
from tests.support.commands import Call, Output
from tests.support.documents import result
from tests.support.evidence import leave
from tests.support.measured_runs import measured_run

ENTRY = """\
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
ONE = f"references:\n{ENTRY}"
Against = Callable[..., Output]


@pytest.fixture
def against(tmp_path: Path, call: Call) -> Against:
    """What is printed of runs, by default a new one, against a file of this text."""

    def compared(text: str, *runs: Run, code: int = Exit.GOOD, words: tuple[str, ...] = ()) -> Output:
        (tmp_path / "references.yaml").write_text(text.replace("VALUE", "400"), "utf-8")
        named = runs or (measured_run(tmp_path / "runs", 0),)
        return call("compare", ",".join(str(run.path) for run in named), "--reference", *words, code=code)

    return compared


def only(printed: Output) -> Any:
    (reference,) = result(printed.out)["references"]
    return reference


@pytest.mark.parametrize(
    ("value", "code", "judgement"),
    [(400, Exit.GOOD, "good"), (500, Exit.BELOW_REFERENCE, "below"), (421, Exit.UNKNOWN, "cannot tell")],
)
@pytest.mark.parametrize("count", [1, 3])
def test_a_figure_is_judged_by_its_interval(
    tmp_path: Path, against: Against, value: int, code: Exit, judgement: str, count: int
) -> None:
    runs = [measured_run(tmp_path / "runs", place) for place in range(count)]
    made = only(against(ONE.replace("VALUE", str(value)), *runs, code=code, words=("--json",)))
    assert (made["judgement"], made["at_least"]) == (judgement, pytest.approx(0.95 * value))
    assert made["interval_of"] == ("launches" if count == 3 else "this run")
    assert made["low"] < made["figure"] < made["high"]


def test_what_a_file_of_references_holds_changes_no_terminal_and_no_file_for_ci(
    tmp_path: Path, against: Against
) -> None:
    """Marks that reorder a line, and control characters, in a source and in a recipe's name of another entry."""
    hostile = 'run\u202e "x\x1b[2J\u2066'
    text, run = ONE.replace("https://example.org/run", json.dumps(hostile)), measured_run(tmp_path / "runs", 0)
    files = tmp_path / "junit.xml", tmp_path / "out.md"
    shown = against(text, run, words=("--junit", str(files[0]), "--markdown", str(files[1]))).out
    said = against(text.replace("recipe: r", f"recipe: {json.dumps(hostile)}"), run, code=Exit.USAGE).err
    assert "\\u202e" in shown and "\\u202e" in said
    for each in (shown, said, *(file.read_text("utf-8") for file in files)):
        assert all(character.isprintable() or character == "\n" for character in each), each


def test_a_figure_above_its_reference_is_noted_and_a_unit_for_each_gpu_counts(against: Against) -> None:
    text = ONE.replace("VALUE", "50").replace("images/s", "images/s/GPU") + "  upper: 0.1\n"
    made = only(against(text, words=("--json",)))
    assert made["above"] and made["figure"] == pytest.approx(100.0, rel=0.02)


@pytest.mark.parametrize(
    ("wanted", "given", "fits"),
    [
        ({"lr": 0.1}, {"lr": "0.10"}, True), ({"lr": 0.001}, {"lr": "1e-3"}, True), ({"lr": 0.1}, {"lr": "0.2"}, False),
        *(({"amp": True}, {"amp": own}, True) for own in ("", "True", "1", "on", "data.txt")),
        ({"amp": True}, {}, False), ({"amp": True}, {"amp": "False"}, False),
        ({"amp": False}, {}, True), ({"amp": False}, {"amp": "false"}, True), ({"amp": False}, {"amp": ""}, False),
        ({"tag": ""}, {"tag": ""}, True), ({"tag": "a"}, {"tag": "b"}, False), ({"tag": "a"}, {}, False),
    ],
)  # fmt: skip
def test_options_of_a_reference_are_compared_by_value(wanted: Any, given: dict[str, str], fits: bool) -> None:
    reference = Reference("s", "r", 4, 1.0, "images/s", -0.05, "x", "2026-11-22", options=wanted)
    assert may_fit(reference, 4, (), given) == fits and not may_fit(reference, 8, (), given)


@pytest.mark.parametrize(
    ("settings", "given", "shared_by", "fits"),
    [
        ({"batch-size": "32"}, {}, None, True), ({"batch-size": "128"}, {}, None, False),
        ({"batch-size": "128"}, {}, 2, True), ({"batch-size": "32"}, {}, 2, False),
        ({"batch-size": "128", "workers": "4"}, {}, 2, True),
        ({}, {"batch-size": "64"}, 2, True), ({}, {"batch-size": "64"}, 1, False),
        ({}, {"batch-size": "64"}, None, False),
    ],
)  # fmt: skip
def test_of_a_whole_batch_a_reference_is_of_each_gpus_share(
    settings: dict[str, str], given: dict[str, str], shared_by: int | None, fits: bool
) -> None:
    """And of a point whose launches failed the share is what it would have been; else a batch is each GPU's own."""
    options: dict[str, Any] = {"batch-size": 32} | ({"workers": 4} if "workers" in settings else {})
    reference = Reference("s", "r", 4, 1.0, "images/s", -0.05, "x", "2026-11-22", options=options)
    assert may_fit(reference, 4, tuple(settings.items()), {"model": "resnet50"} | given, shared_by) == fits


def test_the_reference_that_names_most_options_counts(against: Against) -> None:
    wide = ONE.replace("VALUE", "900").replace(", batch-size: 10, compile: true", "")
    assert only(against(wide + ENTRY.replace("VALUE", "390"), words=("--json",)))["value"] == 390.0


def test_a_figure_of_another_arm_is_not_held_against_one_of_training(tmp_path: Path, against: Against) -> None:
    """Ranks that train each for itself are faster: that would hide what the reference is there to find."""
    run = measured_run(tmp_path / "runs", 0)
    program = (*run.needed_plan().program, "--arms=uncoupled")
    leave(run, "plan.json", msgspec.structs.replace(run.needed_plan(), arms=("uncoupled",), program=program))
    said = against(ONE, run, code=Exit.USAGE).err
    assert "a figure of the arm uncoupled: a reference is one of training" in said
    against(ONE.replace("compile: true", "compile: true, arms: uncoupled"), run)


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
    "two": (ONE + ENTRY, "2 references fit"),
    "an unknown key": (ONE + "  bound: 1\n", "bound"),
    "no source": (ONE.replace("  source: https://example.org/run\n", ""), "source"),
    "a lower bound above": (ONE.replace("-0.05", "0.05"), "lower"),
    "not a number": (ONE.replace("VALUE", ".nan"), "expected `float`"),
    "without an end": (ONE.replace("VALUE", ".inf"), "value"),
    "no date": (ONE.replace("2026-11-22", "yesterday"), "date"),
    "a day that is none": (ONE.replace("2026-11-22", "2026-11-31"), "there is no day 2026-11-31"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_file_that_does_not_fit_is_explained(case: str, against: Against) -> None:
    text, says = WRONG[case]
    assert says.lower() in against(text, code=Exit.USAGE).err.lower()


def test_a_missing_file_is_named_and_a_launch_counts_once_and_as_a_repeat(
    tmp_path: Path, against: Against, call: Call
) -> None:
    runs = [measured_run(tmp_path / "runs", place) for place in range(2)]
    missing = call("compare", str(runs[0].path), "--reference", code=Exit.USAGE).err
    assert str(tmp_path / "references.yaml") in missing
    copy = Run(shutil.copytree(runs[0].path, tmp_path / f"{runs[0].run_id}0"))
    said = against(ONE, runs[0], copy, code=Exit.USAGE).err
    assert "are one launch: the same ranks began at the same instant" in said
    for run in runs:
        run.write("code.json", CodeRecord("/home/u/work", run.run_id, "main", dirty=False))
    said = against(ONE, *runs, code=Exit.REFUSED).err
    assert said.count(" has another commit than ") == 1
    assert "--force" not in said, "no code overrides it"
