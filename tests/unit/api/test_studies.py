"""Studies, reports, comparisons, expectations and bundles from Python: the same as from the command line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import msgspec
import pytest

from runner.api import Options, Run, Study, bundle, compare, expect, report, scale, verify
from runner.api.arguments import arguments_of, values_of
from runner.cli import run as runner
from runner.cli import submit
from runner.core.errors import Exit, NotProvenError, RefusedError, RunnerError, UsageError
from tests.support.documents import result
from tests.support.measured_runs import measured_run
from tests.support.own_state import own_state

ROOT = Path(__file__).resolve().parents[3]
NATIVE: dict[str, Any] = {"site": "local", "runtime": "native", "recipe": str(ROOT / "tests/support/timed_recipe")}


@pytest.fixture(autouse=True)
def _own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own_state(tmp_path, monkeypatch)
    monkeypatch.chdir(tmp_path)


def launched(tmp_path: Path, order: str, ratio: float) -> tuple[list[Run], list[Run]]:
    """Launches in turns, those of B so much faster."""
    sides: dict[str, list[Run]] = {"A": [], "B": []}
    for place, side in enumerate(order):
        speed = (ratio if side == "B" else 1.0) * (1.0 + 0.002 * (-1) ** place)
        sides[side].append(Run(measured_run(tmp_path / "runs", place, speed=speed).path))
    return sides["A"], sides["B"]


def plain(facts: object) -> Any:
    return json.loads(msgspec.json.encode(facts))


def test_a_comparison_is_that_of_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a, b = launched(tmp_path, "ABBABA", 1.1)
    made = compare(a, b, fail_below=0.95)
    assert (made.points[0].verdict, made.points[0].judgement) == ("faster", "good")
    texts = [",".join(str(run.directory) for run in side) for side in (a, b)]
    assert runner(["compare", *texts, "--fail-below", "0.95", "--json"]) == Exit.GOOD
    printed = result(capsys.readouterr().out)
    assert printed["points"] == plain(made)["points"]
    assert compare(a[0], b[0]).points[0].verdict == "no verdict"


def test_a_report_is_written_only_where_an_output_is_named(tmp_path: Path) -> None:
    (run,), _ = launched(tmp_path, "A", 1.0)
    before = {path.name for path in tmp_path.iterdir()}
    made = report(run)
    assert {path.name for path in tmp_path.iterdir()} == before
    assert made.rows[0].state == "proven" and made.files == ()
    assert "report.html" in report(str(run.directory), output=tmp_path / "here").files
    assert (tmp_path / "here" / "report.png").is_file()


def test_a_bundle_is_made_and_verified(tmp_path: Path) -> None:
    a, _ = launched(tmp_path, "AA", 1.0)
    made = bundle(*a, file=tmp_path / "b.tar")
    assert [each.run for each in made.runs] == sorted(run.id for run in a)
    assert verify(tmp_path / "b.tar").runs == made.runs
    content = bytearray((tmp_path / "b.tar").read_bytes())
    content[len(content) // 2] ^= 1
    (tmp_path / "b.tar").write_bytes(content)
    with pytest.raises(NotProvenError, match="altered"):
        verify(tmp_path / "b.tar")


def test_an_expectation_is_that_of_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    made = expect(
        [8, 64], site="technion", images_per_s=2500, set={"batch-size": 128}, assume={"spread": (0, 0.01, 0.02)}
    )
    words = ["expect", "--gpus", "8,64", "--site", "technion", "--images-per-s", "2500", "--set", "batch-size=128"]
    assert runner([*words, "--assume", "spread=0:0.01:0.02", "--json"]) == Exit.GOOD
    assert result(capsys.readouterr().out) == plain(made)


def test_a_dry_run_plans_a_study_and_changes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    values: dict[str, Any] = {"set": {"batch-size": [8, 16], "window-seconds": 1}, "repeats": 2}
    made = scale([1, 2], **NATIVE, **values, dry_run=True)
    assert list(tmp_path.iterdir()) == []
    words = ["scale", "--gpus", "1,2", "--repeats", "2", "--set", "batch-size=8,16", "--set", "window-seconds=1"]
    words += [f"--{name}={value}" for name, value in NATIVE.items()]
    assert runner([*words, "--dry-run", "--json"]) == Exit.GOOD
    assert result(capsys.readouterr().out) == plain(made)
    assert len(made.launches) == 8


def test_solo_gpus_is_the_option_of_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    made = scale([1, 2], **NATIVE, arms=["full", "solo"], same_nodes=True, solo_gpus=1, repeats=2, dry_run=True)
    words = ["scale", "--gpus", "1,2", "--arms", "full,solo", "--same-nodes", "--solo-gpus", "1", "--repeats", "2"]
    words += [f"--{name}={value}" for name, value in NATIVE.items()]
    assert runner([*words, "--dry-run", "--json"]) == Exit.GOOD
    assert result(capsys.readouterr().out) == plain(made)
    assert sum(each.arm == "solo" for each in made.launches) == 2  # of the node's two GPUs, one in each repeat


def test_options_become_the_words_that_the_command_line_reads_as_the_same_values() -> None:
    """So a study that was begun here goes on there."""
    given: dict[str, Any] = {
        "site": Path("/a b/site.yaml"), "mount": ["/data:/data:ro", "/x:/y"], "env": {"A": "b c=-d", "-B"[1:]: None},
        "set": {"batch-size": 8, "compile": True, "precision": "-x"}, "time": 3725, "scheduler_option": {"nice": "5"},
        "stage": True, "snapshot": False, "name": None, "force": ["a", "b"], "cpus_per_gpu": 3,
    }  # fmt: skip
    wanted = values_of("scale", given, Options.__annotations__)
    with submit.command.make_context("submit", ["--gpus=2", *arguments_of(given)]) as context:
        assert isinstance(context, click.Context)
        read = {name: context.params[name] for name in wanted if name != "snapshot"}
    assert read == {name: value for name, value in wanted.items() if name != "snapshot"}


WRONG: dict[str, tuple[Callable[[], object], type[RunnerError], str]] = {
    "sizes of one text": (lambda: scale("1,2", **NATIVE), UsageError, "sizes are one value"),  # type: ignore[arg-type]
    "no repeats": (
        lambda: scale([1], **NATIVE, repeats=0),
        UsageError,
        "'repeats' cannot be read: it must be one or more",
    ),
    "an option that is none": (lambda: scale([1], **NATIVE, node=2), UsageError, "did you mean 'nodes'?"),  # type: ignore[call-overload]
    "a small budget": (lambda: scale([1, 2], **NATIVE, budget=0.0), RefusedError, "the budget is 0"),
    "an arm that is none": (lambda: scale([1], **NATIVE, arms=["none"]), UsageError, "no arm"),  # type: ignore[list-item]
    "a size that is no number": (lambda: scale([1, "x"], **NATIVE), UsageError, "must be a whole number"),  # type: ignore[list-item]
    "single GPUs without their arm": (lambda: scale([1], **NATIVE, solo_gpus=1), UsageError, "no GPU is alone"),
    "single GPUs of separate jobs": (
        lambda: scale([1, 2], **NATIVE, arms=["full", "solo"], solo_gpus=1, dry_run=True),
        UsageError,
        "of separate jobs one GPU is alone",
    ),
    "no single GPU": (lambda: scale([1], **NATIVE, solo_gpus=0), UsageError, "'solo_gpus' cannot be read"),
    "no attempts": (lambda: scale([1], **NATIVE, attempts=0), UsageError, "'attempts' cannot be read"),
    "a budget in words": (lambda: scale([1], **NATIVE, budget="much"), UsageError, "must be a number"),  # type: ignore[call-overload]
    "a setting without a name": (lambda: scale([1], **NATIVE, set={3: 4}), UsageError, "must be a text"),  # type: ignore[dict-item]
    "a list of runs to report": (lambda: report(["a", "b"]), UsageError, "must be a text or a path"),  # type: ignore[arg-type]
    "a report into a number": (lambda: report("a", output=3), UsageError, "'output' cannot be read"),  # type: ignore[arg-type]
    "a code in no list": (lambda: compare("a", "b", force="other-batch"), UsageError, "must be a list"),
    "a reference that is no file": (lambda: compare("a", reference=3), UsageError, "must be a text or a path"),  # type: ignore[arg-type]
    "a bundle without a name": (lambda: bundle("a", file=None), UsageError, "'file' cannot be read"),  # type: ignore[arg-type]
    "a name with NUL": (lambda: verify("a\0"), UsageError, "a NUL character"),
    "a rate in words": (lambda: expect(8, images_per_s="fast"), UsageError, "must be a number"),  # type: ignore[arg-type]
    "an assumption in words": (lambda: expect(8, assume={"spread": "x"}), UsageError, "must be a number"),  # type: ignore[dict-item]
    "a wireup that is none": (lambda: expect(8, wireup="mpi"), UsageError, "no wireup 'mpi'"),  # type: ignore[arg-type]
    "nothing to report": (report, UsageError, "no run and no study is named"),
    "no such run": (lambda: report("none"), UsageError, "no run matches"),
    "no second side": (lambda: compare("a"), UsageError, "a second side, or a reference"),
    "a margin of 2": (lambda: compare("a", "b", margin=2), UsageError, "between 0 and 1"),
    "a limit that is no number": (lambda: compare("a", "b", fail_below=float("nan")), UsageError, "between 0 and 10"),
    "no launches": (lambda: compare([], "b"), UsageError, "no run is named"),
    "no bundle": (lambda: verify("/nowhere/b.tar"), UsageError, "no such file"),
    "no sizes": (lambda: expect([]), UsageError, "no sizes are given"),
    "half a range": (lambda: expect(8, assume={"spread": (1, 2)}), UsageError, "VALUE, or (LOW, VALUE, HIGH)"),  # type: ignore[dict-item]
    "both rates": (lambda: expect(8, images_per_s=1, step_ms=2), UsageError, "exclude each other"),
    "no such study": (lambda: Study("/nowhere").status(), UsageError, "no study matches"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_is_an_error_of_the_runner(case: str, tmp_path: Path) -> None:
    call, kind, says = WRONG[case]
    with pytest.raises(kind) as raised:
        call()
    assert says in str(raised.value)
    assert not (tmp_path / "runs").exists()
