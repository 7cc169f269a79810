"""``compare``: proven figures against each other; what is refused, and what the exit code and the files for CI say."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from runner.cli import run as runner
from runner.core.errors import Exit
from runner.figures.compare.compare import CODES
from runner.figures.compare.launches import PointLaunches, compare_point, measured_launch
from runner.figures.compare.text import junit, markdown
from runner.jobs.directory import Run
from runner.model.expectation import Compared
from runner.model.job import CodeRecord, ExitMarker
from runner.model.records import Report, StartRecord
from runner.model.verdict import Verdict
from runner.planning.options import options_of
from tests.support.commands import Call
from tests.support.documents import document, result
from tests.support.measured_runs import PROGRAM, measured_in_turns, measured_run

Sides = Callable[..., tuple[str, str]]


@pytest.fixture
def sides(tmp_path: Path) -> Sides:
    """Launches in an order such as ``ABBABA``, B's ``ratio`` times as fast; ``b``: of B's plan."""

    def launched(order: str = "ABBABA", ratio: float = 1.0, b: dict[str, Any] | None = None) -> tuple[str, str]:
        first, second = measured_in_turns(tmp_path / "runs", order, ratio, b)
        return ",".join(str(run.path) for run in first), ",".join(str(run.path) for run in second)

    return launched


def runs_of(*names: str) -> list[Run]:
    return [Run(Path(name)) for each in names for name in each.split(",")]


@pytest.mark.parametrize(
    ("ratio", "verdict", "code", "row", "says", "kind"),
    [
        (1.1, "faster", Exit.GOOD, "ok", "good: at least", ""),
        (1.0, "equivalent", Exit.GOOD, "ok", "good: at least", ""),
        (0.95, "slower", Exit.UNKNOWN, "cannot tell", "cannot tell: the interval does not exclude", "error"),
        (0.9, "slower", Exit.BELOW_REFERENCE, "**below**", "below", "failure"),
    ],
)
def test_launches_in_turns_get_a_verdict_and_a_limit_counts_by_the_interval(
    sides: Sides, ratio: float, verdict: str, code: Exit, row: str, says: str, kind: str, tmp_path: Path, call: Call
) -> None:
    files = tmp_path / "junit.xml", tmp_path / "out.md"
    words = ("--fail-below", "0.95", "--junit", str(files[0]), "--markdown", str(files[1]), "--json")
    (point,) = result(call("compare", *sides(ratio=ratio), *words, code=code).out)["points"]
    assert (point["order"], point["verdict"], point["judgement"]) == ("ABBABA", verdict, says.partition(":")[0])
    assert point["low"] < ratio - 1.0 < point["high"]
    assert point["launches_needed"]["0.05"] == 3
    suite = ET.parse(files[0]).getroot()[0]
    assert [each.tag for each in suite[0] if each.tag != "system-out"] == [kind] * bool(kind)
    counted = [suite.get(name) for name in ("tests", "failures", "errors", "skipped")]
    assert counted == ["1", str(int(kind == "failure")), str(int(kind == "error")), "0"]
    table = files[1].read_text()
    assert f"| {row} |" in table and f"; {says} 0.95 of A" in table


def on_gpus(given: str | None, used: str | None, count: int = 1) -> Callable[[list[Run]], None]:
    """The GPU of rank 3 by its launcher and by its framework, in that many runs from the last but one."""

    def change(runs: list[Run]) -> None:
        for run in runs[-2 : -2 - count : -1]:
            start, report = run.read("ranks/3.start.json", StartRecord), run.read("ranks/3.report.json", Report)
            assert start is not None and report is not None
            run.write("ranks/3.start.json", msgspec.structs.replace(start, device_uuid=given))
            run.write("ranks/3.report.json", msgspec.structs.replace(report, device_uuid=used))

    return change


def overlapping(runs: list[Run]) -> None:
    marker = runs[0].read("exit.json", ExitMarker)
    assert marker is not None
    runs[0].write("exit.json", ExitMarker(marker.job, 0, marker.end_s + 700.0))


# Healthy GPUs differ, and times do: launches that are not side by side get no verdict, though B has half of A's rate.
NO_VERDICT: dict[str, tuple[str, dict[str, Any], Callable[[list[Run]], None] | None, str]] = {
    "one launch a side": ("AB", {}, None, "fewer than 3 launches"),
    "two of a side": ("ABBAB", {}, None, "fewer than 3 launches"),
    "one side after the other": ("AAABBB", {}, None, "the order is not interleaved"),
    "a slow first launch goes with a side": ("ABBBABAA", {}, None, "in ABBAABBA it is not"),
    "other nodes": ("ABBABA", {"nodes": ("n0", "n7")}, None, "different nodes (n0, n1 / n0, n7)"),
    "another GPU": ("ABBABA", {}, on_gpus("GPU-9", "GPU-9"), "ran on different GPUs of the nodes"),
    "another GPU than given": ("ABBABA", {}, on_gpus("GPU-3", "GPU-9"), "ran on different GPUs of the nodes"),
    "no GPU named": ("ABBABA", {}, on_gpus(None, None), "do not say on which GPUs"),
    "a number for a UUID": ("ABBABA", {}, on_gpus(None, "index-1", 5), "do not say on which GPUs"),
    "at the same time": ("ABBABA", {}, overlapping, "ran at the same time"),
    "no end": ("ABBABA", {}, lambda runs: (runs[0].path / "exit.json").unlink(), "it is unknown when"),
}


@pytest.mark.parametrize("case", NO_VERDICT)
def test_without_launches_side_by_side_there_is_no_verdict(sides: Sides, case: str, call: Call) -> None:
    order, b, change, why = NO_VERDICT[case]
    named = sides(order, 0.5, b)
    if change is not None:
        change(runs_of(*named))
    (point,) = result(call("compare", *named, "--json").out)["points"]
    assert (point["verdict"], point["judgement"], why in point["why"]) == ("no verdict", "", True), point["why"]
    text = call("compare", *named, "--fail-below", "0.95", code=Exit.UNKNOWN).out
    assert f"no verdict: {point['why']}" in text
    assert f"cannot tell whether B reaches 0.95 of A: {point['why']}" in text


def test_every_code_stands_on_the_page() -> None:
    text = (Path(__file__).parents[4] / "docs/compare.md").read_text("utf-8")
    assert [code for code in CODES if f"`{code}`" not in text] == []


def test_what_cannot_be_compared_is_refused_with_its_code(sides: Sides, call: Call, tmp_path: Path) -> None:
    """What each code stands for: tests/unit/jobs/test_comparison.py."""
    named = sides(ratio=1.1, b={"program": (*PROGRAM[:3], "vgg16", *PROGRAM[4:])})
    printed = document(call("compare", *named, "--json", code=Exit.REFUSED).out)
    assert printed.error is not None and printed.error.code == "other-model"
    assert printed.result["points"] == []
    forced = result(call("compare", *named, "--force", "other-model", "--json").out)
    assert [(each["code"], each["forced"]) for each in forced["findings"]] == [("other-model", True)]
    assert forced["points"][0]["verdict"] == "faster"
    files = (tmp_path / "m.md", tmp_path / "j.xml")
    words = ("--force", "other-model", "--markdown", str(files[0]), "--junit", str(files[1]))
    answers = [call("compare", *named, *words).out, *(each.read_text() for each in files)]
    assert ["forced: model: A has resnet50, B has vgg16" in each for each in answers] == [True] * 3
    said = call("compare", *named, code=Exit.REFUSED).err
    assert "refused [other-model]: model: A has resnet50, B has vgg16" in said
    assert "override: --force other-model" in said


def test_alike_figures_are_compared_in_their_own_unit(sides: Sides, call: Call) -> None:
    named = sides("AB")
    for run in runs_of(*named):
        assert run.verdict is not None
        run.write("verdict.json", msgspec.structs.replace(run.verdict, unit="tokens"))
    printed = call("compare", *named).out
    assert "tokens/s, 1 launch" in printed and "images" not in printed


def committed(run: Run, side: str) -> None:
    run.write("code.json", CodeRecord("/home/u/work", side, "main", dirty=False))


def copied(run: Run, side: str) -> None:
    """What the program leaves beside itself is no code."""
    (run.path / "recipe").mkdir()
    (run.path / "recipe" / "main.py").write_text(side)
    (run.path / "recipe" / "losses.json").write_text(run.run_id)


@pytest.mark.parametrize(
    ("b", "change", "differs", "shown"),
    [
        ({"env": (("NCCL_ALGO", "Ring"),)}, None, "environment NCCL_ALGO", "NCCL_ALGO"),
        ({}, committed, "code commit", "commit: A -> B"),
        ({}, copied, "code program", "program: sha256 "),
    ],
)
def test_what_differs_between_sides_is_named_and_within_one_side_it_is_no_repeat(
    sides: Sides, b: dict[str, Any], change: Callable[[Run, str], None] | None, differs: str, shown: str, call: Call
) -> None:
    first, second = (each.split(",") for each in sides("ABBA", b=b))
    for side, names in (("A", first), ("B", second)):
        for run in runs_of(*names):
            if change is not None:
                change(run, side)
    assert result(call("compare", ",".join(first), ",".join(second), "--json").out)["differences"] == [differs]
    assert shown in call("diff", first[0], second[0]).out
    mixed = f"{first[0]},{second[1]}", f"{second[0]},{first[1]}"
    assert "refused [not-repeats]: launches of A are no repeats: " in call("compare", *mixed, code=Exit.REFUSED).err


@pytest.mark.parametrize("outcome", ["not-proven", "ran"])
def test_only_measured_figures_are_compared(sides: Sides, outcome: Any, call: Call) -> None:
    """No code overrides it."""
    first, second = sides("AB")
    (run,) = runs_of(second)
    run.write("verdict.json", Verdict(outcome=outcome, reasons=("the reason",), images_per_s=900.0))
    said = call("compare", first, second, code=Exit.NOT_PROVEN).err
    assert f"{run.run_id} is {outcome}, and only measured figures are compared: the reason" in said


def test_a_demonstration_is_labelled(tmp_path: Path, call: Call) -> None:
    label = "demonstration, no performance claim: by hand"
    runs = [str(measured_run(tmp_path, place, demonstration=label).path) for place in range(2)]
    assert label in call("compare", *runs, "--markdown", str(tmp_path / "m")).out
    assert label in (tmp_path / "m").read_text()


WRONG: dict[str, tuple[tuple[str, ...], str]] = {
    "nothing to compare with": (("A",), "B, or --reference"),
    "both": (("A", "B", "--reference"), "B, or --reference"),
    "a run twice": (("A,A", "B"), "is named twice"),
    "a run on both sides": (("A", "A"), "is on both sides"),
    "an unknown code": (("A", "B", "--force", "other-modle"), "did you mean 'other-model'?"),
    "a limit that is no number": (("A", "B", "--fail-below", "nan"), "nan is no number"),
    "a margin of 200 %": (("A", "B", "--margin", "200%"), "does not lie between 0 and 1"),
    "no run": (("A", ","), "no run is named"),
    "a limit for a reference": (("A", "--fail-below", "0.9", "--reference"), "need B"),
    "a file in no directory": (("A", "B", "--junit", "/nowhere/x.xml"), "cannot be written"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_usage_is_explained(sides: Sides, case: str, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = sides("AB")
    words, says = WRONG[case]
    typed = [each.replace("A", first) if set(each) <= set("A,") else second if each == "B" else each for each in words]
    assert runner(["compare", *typed]) in (Exit.USAGE, Exit.INFRASTRUCTURE)
    assert says in capsys.readouterr().err


def test_options_of_a_program_are_read_in_both_forms() -> None:
    words = ("python3", "-u", "main.py", "--model", "vgg16", "--compile", "--precision=fp32", "--", "x")
    assert options_of(words) == {"model": "vgg16", "compile": "", "precision": "fp32"}


def test_names_of_others_make_no_markup(tmp_path: Path) -> None:
    """In XML and Markdown: what a run's plan or a command line holds is shown, and nothing more."""
    hostile = "<b>&\"'|`x`](http://x)\x1b[2J\x00\n# h \udcff"
    first, second = (PointLaunches((measured_launch(measured_run(tmp_path, place)),)) for place in range(2))
    point = compare_point(first, second, 0.02, None, ((hostile, "1"),))
    made = Compared(hostile, hostile, 0.02, None, (point,), (), (hostile,), hostile, ())
    root = ET.fromstring(junit(made).encode("utf-8", "replace"))
    assert [each.tag for each in root.iter()] == ["testsuites", "testsuite", "testcase", "skipped", "system-out"]
    name = root[0][0].get("name")
    assert name is not None and name.startswith("4 GPUs <b>&\"'|`x`](http://x)") and "\x1b" not in name
    text = markdown(made)
    assert not re.search(r"(?<!\\)[<`\]]", text.replace("| ok |", "")), text
    assert [line[:2] for line in text.splitlines() if line.startswith("#")] == ["##"]
