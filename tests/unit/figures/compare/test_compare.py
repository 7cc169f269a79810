"""``compare``: proven figures against each other; what is refused, and what the exit code and the files for CI say."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest

from runner.cli import run as runner
from runner.core.errors import Exit
from runner.figures.compare.compare import CODES
from runner.figures.compare.launches import compare_point, measured_launch
from runner.figures.compare.text import junit, markdown
from runner.jobs.directory import Run
from runner.model.expectation import Compared
from runner.model.job import CodeRecord, ExitMarker
from runner.model.records import Report, StartRecord
from runner.model.verdict import Verdict
from runner.planning.options import options_of
from tests.support.documents import document, result
from tests.support.measured_runs import PROGRAM, measured_run

Sides = Callable[..., tuple[str, str]]


@pytest.fixture
def sides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Sides:
    """Launches in an order such as ``ABBABA``, B's ``ratio`` times as fast; launches differ by ``spread``."""
    monkeypatch.setenv("RUNNER_STATE", str(tmp_path / "state"))

    def launched(order: str, ratio: float = 1.0, spread: float = 0.005, b: dict[str, Any] | None = None) -> Any:
        random = Random(3)
        names: dict[str, list[str]] = {"A": [], "B": []}
        for place, side in enumerate(order):
            speed = (ratio if side == "B" else 1.0) * (1.0 + spread * random.uniform(-1.0, 1.0))
            run = measured_run(tmp_path / "runs", place, speed=speed, **((b or {}) if side == "B" else {}))
            names[side].append(str(run.path))
        return ",".join(names["A"]), ",".join(names["B"])

    return launched


def compared(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> Any:
    capsys.readouterr()
    assert runner(["compare", *words, "--json"]) == code
    return result(capsys.readouterr().out)


@pytest.mark.parametrize(("ratio", "verdict"), [(1.1, "faster"), (0.9, "slower"), (1.0, "equivalent")])
def test_launches_in_turns_get_a_verdict(
    sides: Sides, ratio: float, verdict: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (point,) = compared(capsys, *sides("ABBABA", ratio))["points"]
    assert (point["order"], point["verdict"]) == ("ABBABA", verdict)
    assert point["low"] < ratio - 1.0 < point["high"]
    assert point["launches_needed"]["0.05"] == 3
    assert point["judgement"] == ""


NO_VERDICT: dict[str, tuple[str, dict[str, Any], str]] = {
    "one launch a side": ("AB", {}, "fewer than 3 launches"),
    "two of a side": ("ABBAB", {}, "fewer than 3 launches"),
    "one side after the other": ("AAABBB", {}, "not interleaved"),
    "other nodes": ("ABBABA", {"nodes": ("n0", "n7")}, "different nodes (n0, n1 / n0, n7)"),
}


@pytest.mark.parametrize("case", NO_VERDICT)
def test_without_launches_side_by_side_there_is_no_verdict(
    sides: Sides, case: str, capsys: pytest.CaptureFixture[str]
) -> None:
    order, b, why = NO_VERDICT[case]
    first, second = sides(order, 0.5, b=b)
    (point,) = compared(capsys, first, second)["points"]
    assert point["verdict"] == "no verdict"
    assert why in point["why"]
    assert compared(capsys, first, second, "--fail-below", "0.95", code=Exit.UNKNOWN)["points"][0]["judgement"] == (
        "cannot tell"
    )
    assert runner(["compare", first, second]) == Exit.GOOD
    assert "no verdict: " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("given", "used", "why"),
    [
        ("GPU-9", "GPU-9", "ran on different GPUs of the nodes"),
        ("GPU-3", "GPU-9", "ran on different GPUs of the nodes"),
        (None, None, "do not say on which GPUs"),
        (None, "index-1", "do not say on which GPUs"),  # as a framework says that knows no UUID
    ],
)
def test_launches_on_other_gpus_of_the_same_nodes_get_no_verdict(
    sides: Sides, given: str | None, used: str | None, why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Healthy GPUs differ: two jobs that a node's GPUs were given to in turns are not side by side."""
    first, second = sides("ABBABA", 0.5)
    runs = [*first.split(","), *second.split(",")]
    for path in runs if used == "index-1" else runs[-2:-1]:
        run = Run(Path(path))
        start, report = run.read("ranks/3.start.json", StartRecord), run.read("ranks/3.report.json", Report)
        assert start is not None and report is not None
        run.write("ranks/3.start.json", msgspec.structs.replace(start, device_uuid=given))
        run.write("ranks/3.report.json", msgspec.structs.replace(report, device_uuid=used))
    (point,) = compared(capsys, first, second, "--fail-below", "0.95", code=Exit.UNKNOWN)["points"]
    assert point["verdict"] == "no verdict"
    assert why in point["why"]


def test_launches_that_overlap_in_time_get_no_verdict(
    sides: Sides, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = sides("ABBABA")
    run = Run(Path(first.split(",", maxsplit=1)[0]))
    marker = run.read("exit.json", ExitMarker)
    assert marker is not None
    run.write("exit.json", ExitMarker(marker.job, 0, marker.end_s + 700.0))
    (point,) = compared(capsys, first, second)["points"]
    assert "ran at the same time" in point["why"]
    (run.path / "exit.json").unlink()
    (point,) = compared(capsys, first, second)["points"]
    assert (point["verdict"], "it is unknown when" in point["why"]) == ("no verdict", True)


@pytest.mark.parametrize(
    ("ratio", "limit", "code", "judgement"),
    [
        (0.9, "0.95", Exit.BELOW_REFERENCE, "below"),
        (1.0, "0.95", Exit.GOOD, "good"),
        (0.95, "0.95", Exit.UNKNOWN, "cannot tell"),
    ],
)
def test_a_limit_counts_by_the_interval(
    sides: Sides, ratio: float, limit: str, code: Exit, judgement: str, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    files = tmp_path / "junit.xml", tmp_path / "out.md"
    words = ("--fail-below", limit, "--junit", str(files[0]), "--markdown", str(files[1]))
    found = compared(capsys, *sides("ABBABA", ratio), *words, code=code)
    assert found["points"][0]["judgement"] == judgement
    suite = ET.parse(files[0]).getroot()[0]
    kind = {"below": "failure", "cannot tell": "error"}.get(judgement)
    assert [each.tag for each in suite[0] if each.tag != "system-out"] == ([kind] if kind else [])
    counted = {name: suite.get(name) for name in ("tests", "failures", "errors", "skipped")}
    assert counted == {
        "tests": "1", "failures": str(int(kind == "failure")), "errors": str(int(kind == "error")), "skipped": "0",
    }  # fmt: skip
    assert {"below": "**below**", "good": "| ok |", "cannot tell": "| cannot tell |"}[judgement] in files[1].read_text()


def test_every_code_stands_on_the_pages() -> None:
    for page in ("compare.md", "failures.md"):
        text = (Path(__file__).parents[4] / "docs" / page).read_text("utf-8")
        assert [code for code in CODES if f"`{code}`" not in text and f"`[{code}]`" not in text] == []


def test_what_cannot_be_compared_is_refused_with_its_code(sides: Sides, capsys: pytest.CaptureFixture[str]) -> None:
    """What each code stands for: tests/unit/jobs/test_comparison.py."""
    first, second = sides("ABBABA", 1.1, b={"program": (*PROGRAM[:3], "vgg16", *PROGRAM[4:])})
    assert runner(["compare", first, second, "--json"]) == Exit.REFUSED
    printed = document(capsys.readouterr().out)
    assert printed.error is not None and printed.error.code == "other-model"
    assert printed.result["points"] == []
    found = compared(capsys, first, second, "--force", "other-model")
    assert [(each["code"], each["forced"]) for each in found["findings"]] == [("other-model", True)]
    assert found["points"][0]["verdict"] == "faster"
    assert runner(["compare", first, second]) == Exit.REFUSED
    said = capsys.readouterr().err
    assert "refused [other-model]: model: A has resnet50, B has vgg16" in said
    assert "override: --force other-model" in said


def test_alike_figures_are_compared_in_their_own_unit(sides: Sides, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = sides("ABBABA", 1.1)
    for run in (Run(Path(name)) for name in (*first.split(","), *second.split(","))):
        verdict = run.read("verdict.json", Verdict)
        assert verdict is not None
        run.write("verdict.json", msgspec.structs.replace(verdict, unit="tokens"))
    assert runner(["compare", first, second]) == Exit.GOOD
    printed = capsys.readouterr().out
    assert "tokens/s, 3 launches" in printed
    assert "images" not in printed


def test_launches_of_one_side_must_be_repeats(sides: Sides, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = sides("ABBABA", b={"env": (("NCCL_ALGO", "Ring"),)})
    assert compared(capsys, first, second)["differences"] == ["environment NCCL_ALGO"]
    one, two = first.split(","), second.split(",")
    mixed = ",".join((one[0], two[1], one[2])), ",".join((two[0], one[1], two[2]))
    assert runner(["compare", *mixed]) == Exit.REFUSED
    assert "refused [not-repeats]: launches of A are no repeats: " in capsys.readouterr().err


def test_other_code_is_a_difference_and_within_one_side_no_repeat(
    sides: Sides, capsys: pytest.CaptureFixture[str]
) -> None:
    """By its commit where it was not copied. What the program leaves beside itself is no code."""
    first, second = sides("ABBABA")
    for names, commit in ((first, "c0ffee"), (second, "f00d")):
        for name in names.split(","):
            Run(Path(name)).write("code.json", CodeRecord("/home/u/work", commit, "main", dirty=False))
    assert compared(capsys, first, second)["differences"] == ["code commit"]
    for names, text in ((first, "a"), (second, "b")):
        for path in map(Path, names.split(",")):
            (path / "code.json").unlink()
            (path / "recipe").mkdir()
            (path / "recipe" / "main.py").write_text(text)
            (path / "recipe" / "losses.json").write_text(path.name)
    assert compared(capsys, first, second)["differences"] == ["code program"]
    assert runner(["diff", first.split(",")[0], second.split(",")[0]]) == Exit.GOOD
    assert "program: sha256 " in capsys.readouterr().out
    (Path(first.split(",")[1]) / "recipe" / "main.py").write_text("c")
    assert runner(["compare", first, second]) == Exit.REFUSED
    assert "launches of A are no repeats: " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("order", "says"),
    [
        ("AB", "cannot tell whether B reaches 0.95 of A: fewer than 3 launches of a side"),
        ("AAABBB", "cannot tell whether B reaches 0.95 of A: the order is not interleaved"),
        ("ABBABA", "below 0.95 of A"),
    ],
)
def test_why_a_limit_cannot_be_judged_is_true(
    sides: Sides, order: str, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its ratio is 0.7: no interval holds 0.95."""
    runner(["compare", *sides(order, 0.7), "--fail-below", "0.95"])
    assert says in capsys.readouterr().out


@pytest.mark.parametrize("outcome", ["not-proven", "ran"])
def test_only_measured_figures_are_compared(sides: Sides, outcome: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """No code overrides it."""
    first, second = sides("ABBABA")
    run = Run(Path(second.split(",")[1]))
    run.write("verdict.json", Verdict(outcome=outcome, reasons=("the reason",), images_per_s=900.0))
    assert runner(["compare", first, second]) == Exit.NOT_PROVEN
    said = capsys.readouterr().err
    assert f"{run.run_id} is {outcome}, and only measured figures are compared: the reason" in said


def test_a_demonstration_is_labelled(sides: Sides, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    label = "demonstration, no performance claim: by hand"
    root = tmp_path / "demonstrations"
    runs = [str(measured_run(root, place, demonstration=label).path) for place in range(6)]
    words = (",".join(runs[each] for each in (0, 3, 5)), ",".join(runs[each] for each in (1, 2, 4)))
    assert runner(["compare", *words, "--markdown", str(tmp_path / "m")]) == Exit.GOOD
    assert label in capsys.readouterr().out
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
    launches = [measured_launch(measured_run(tmp_path, place)) for place in range(2)]
    point = compare_point(launches[:1], launches[1:], 0.02, settings=(hostile,))
    made = Compared(hostile, hostile, 0.02, None, (point,), (), (hostile,), hostile, ())
    root = ET.fromstring(junit(made).encode("utf-8", "replace"))
    assert [each.tag for each in root.iter()] == ["testsuites", "testsuite", "testcase", "skipped", "system-out"]
    name = root[0][0].get("name")
    assert name is not None and name.startswith("4 GPUs <b>&\"'|`x`](http://x)") and "\x1b" not in name
    text = markdown(made)
    assert not re.search(r"(?<!\\)[<`\]]", text.replace("| ok |", "")), text
    assert [line[:2] for line in text.splitlines() if line.startswith("#")] == ["##"]
