"""gpu-runner from Python: the page on it, run cell by cell as in a notebook, and what is wrong."""

from __future__ import annotations

import inspect
import json
import os
import re
import shutil
import subprocess
import sys
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import msgspec
import pytest

import gpu_runner
import runner
from runner import CheckRefusedError, Options, Run, Study, runs, submit
from runner.api import Runs, bundle, compare, expect, report, scale, verify
from runner.api import __all__ as api_names
from runner.cli import run as command_line
from runner.cli.job_options import job_options
from runner.cli.results import json_schema
from runner.core.errors import Exit, NotProvenError, RefusedError, RunnerError, UsageError
from runner.jobs import directory
from runner.model.job import CommandLine
from tests.support.documents import result
from tests.support.json_schema import faults
from tests.support.measured_runs import measured_in_turns, measured_run
from tests.support.own_state import own_state

ROOT = Path(__file__).resolve().parents[3]
NATIVE: dict[str, Any] = {"site": "local", "runtime": "native"}
TIMED = {**NATIVE, "recipe": str(ROOT / "tests/support/timed_recipe")}


@pytest.fixture(autouse=True)
def _own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own_state(tmp_path, monkeypatch)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("print('trained')\n")
    shutil.copytree(ROOT / "tests/support/timed_recipe", tmp_path / "my-recipe")


def cells() -> list[str]:
    """The blocks of code on the page."""
    text = (ROOT / "docs/python.md").read_text("utf-8")
    blocks = re.findall(r"(?:^    .*\n|^\n(?=    ))+", text, re.MULTILINE)
    return [inspect.cleandoc(f"\n{block}") for block in blocks]


def test_the_page_is_true_cell_by_cell(capfd: pytest.CaptureFixture[str]) -> None:
    notebook: dict[str, object] = {}
    found = cells()
    assert len(found) == 13
    for cell in found:
        exec(compile(cell, "cell", "exec"), notebook)
    out, err = capfd.readouterr()
    assert "not judged yet" not in out
    assert "#SBATCH --nodes=2" in out
    assert "still running" in out
    assert err == ""
    study = notebook["study"]
    assert isinstance(study, Study)
    goes_on_by_the_command_line(study, capfd)


def goes_on_by_the_command_line(study: Study, capfd: pytest.CaptureFixture[str]) -> None:
    """Its recorded command line is one of ``scale``, and that of each launch one of ``submit``."""
    launch = study.status().launches[0]
    submitted = directory.Run(Path(launch.directory)).read("command.json", CommandLine)
    assert submitted is not None and submitted.arguments[0] == "submit"
    shutil.rmtree(launch.directory)
    assert study.status().state == "incomplete"
    capfd.readouterr()
    assert command_line(["scale", "--resume", study.id, "--dry-run"]) == Exit.GOOD
    assert launch.launch.key in capfd.readouterr().out


WRONG: dict[str, tuple[dict[str, Any], type[RunnerError], str]] = {
    "an option that is none": ({"node": 2}, UsageError, "did you mean 'nodes'?"),
    "a command of one text": ({"command": "python train.py"}, UsageError, "command is one text"),
    "a mount of one text": ({"mount": "/a:/b"}, UsageError, "must be a list"),
    "a mount that is none": ({"mount": ["/a"]}, UsageError, "SRC:DST"),
    "a time that is none": ({"time": "soon"}, UsageError, "M:S"),
    "variables that are none": ({"env": ["A=1"]}, UsageError, "'env' cannot be read"),
    "a time of nothing": ({"time": 0}, UsageError, "zero"),
    "a variable that is a number": ({"env": {"TOKEN": 3}}, UsageError, "$.env"),
    "GPUs that are a text": ({"gpus": "2"}, UsageError, "$.gpus"),
    "nodes that are a text": ({"nodes": "x"}, UsageError, "$.nodes"),
    "an image that is bytes": ({"image": b"x"}, UsageError, "must be a text"),
    "a directory with a NUL": ({"runs": "a\0b"}, UsageError, "'runs' cannot be read: it has a NUL"),
    "a file with a NUL": ({"hostfile": "a\0b"}, UsageError, "'hostfile' cannot be read: it has a NUL"),
    "a word that is a number": ({"command": ["python", 3]}, UsageError, "it is int, and must be a text"),
    "a choice that is none": ({"bind": "maybe"}, UsageError, "$.bind"),
    "a site that is none": ({"site": "technoin"}, UsageError, "technion"),
    "a recipe that is none": ({"recipe": "prob"}, UsageError, "probe"),
    "more GPUs than anybody has": ({"gpus": 10**9}, RefusedError, "this site has 1"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_option_raises_an_error_of_the_runner(case: str) -> None:
    values, kind, says = WRONG[case]
    with pytest.raises(kind) as raised:
        submit(**{"gpus": 2, "command": ["true"], **NATIVE, "dry_run": True, **values})
    assert says in str(raised.value)
    assert raised.value.code == (Exit.USAGE if kind is UsageError else Exit.REFUSED)
    assert runs() == []


def test_help_and_completion_know_every_option_with_its_type() -> None:
    for function in (submit, scale):
        known = inspect.signature(function).parameters
        hints = {name: typing.get_args(hint)[0] for name, hint in Options.__annotations__.items()}
        assert {name: known[name].annotation for name in hints} == hints
        assert {known[name].kind for name in hints} == {inspect.Parameter.KEYWORD_ONLY}
    assert "options" not in inspect.signature(submit).parameters
    assert list(inspect.signature(submit).parameters)[:3] == ["gpus", "command", "sweep"]
    assert {*dir(gpu_runner)} == {*api_names, "errors"}, "and nothing of the module's own"


def test_runs_are_a_table_in_a_notebook_in_which_nothing_is_markup(tmp_path: Path) -> None:
    run = measured_run(tmp_path / "runs", 0)
    path = tmp_path / "x-sweep/launches/1" / f"{run.run_id}"
    path.parent.mkdir(parents=True)
    run.path.rename(path)
    (tmp_path / "x-sweep/sweep.json").write_text(
        json.dumps({"runs": {"1": {"lr": "<b>&é"}}, "command": {"arguments": [], "directory": ""}})
    )
    html = Runs([Run(path)])._repr_html_()
    assert "<td>lr=&lt;b&gt;&amp;é</td>" in html and f"<td>{run.run_id}</td>" in html and "<td>measured</td>" in html
    assert html.count("<tr>") == 2
    assert isinstance(runs(), Runs)


@pytest.mark.parametrize("own", ["runner.py", "runner/__init__.py"])
def test_the_public_name_is_ours_where_a_directory_has_a_runner_of_its_own(tmp_path: Path, own: str) -> None:
    (tmp_path / own).parent.mkdir(exist_ok=True)
    (tmp_path / own).write_text("mine = True\n")

    def output_of(code: str) -> str:
        env = {**os.environ, "PYTHONPATH": str(ROOT)}
        done = subprocess.run(
            [sys.executable, "-c", code], cwd=tmp_path, env=env, capture_output=True, text=True, check=False
        )
        return (done.stdout + done.stderr.strip()).splitlines()[-1]

    names = "gpu_runner.__all__, gpu_runner.submit.__module__, gpu_runner.runs(), gpu_runner.errors.Exit.USAGE.name"
    assert output_of(f"import gpu_runner; print(*({names}))") == f"{[*api_names, 'errors']} runner.api [] USAGE"
    script = f"import sys; sys.path[:0] = [{str(tmp_path)!r}]; sys.argv = ['', '--version']"
    assert output_of(f"{script}; from gpu_runner import _main; _main()").startswith("gpu-runner, version ")
    refused = output_of("import runner; assert runner.mine; import gpu_runner")
    assert refused.startswith("ImportError: gpu_runner is the package runner") and str(tmp_path / own) in refused


def plain(facts: object) -> Any:
    return json.loads(msgspec.json.encode(facts))


def test_a_refused_job_has_its_findings_and_is_no_run() -> None:
    with pytest.raises(CheckRefusedError, match="mount-source-missing") as raised:
        submit(2, ["true"], **NATIVE, mount=["/no/such:/no/such"])
    assert [each.code for each in raised.value.findings] == ["mount-source-missing"]
    assert raised.value.fix
    assert runs() == []


def test_objects_are_those_of_the_json(tmp_path: Path) -> None:
    run = submit(2, [sys.executable, "train.py"], **NATIVE, runs=tmp_path / "elsewhere")
    assert run.directory.parent == tmp_path / "elsewhere"
    assert (run.verdict, repr(run)) == (None, f"<run {run.id}>")
    for wrong in ("60", True, -1, float("nan"), [1]):
        with pytest.raises(UsageError, match="the timeout is "):
            run.wait(wrong)
    waited = run.wait(timeout=60)
    assert (run.verdict, repr(run)) == (waited, f"<run {run.id}: ran>")
    envelope = {"schema": "gpu-runner/1", "command": "status", "exit_code": 0, "error": None}
    assert faults(envelope | {"result": plain(run.status())}, json_schema()) == []
    assert run.cancel().had_ended
    words = [sys.executable, "-m", "runner", "status", run.id, "--json"]
    printed = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert json.loads(printed)["result"] == plain(run.status())
    assert runs("train") == runs(run.id) == [run] == [Run(run.directory)]
    assert runs("other") == []


def test_a_dry_run_is_that_of_the_command_line_and_changes_nothing(tmp_path: Path) -> None:
    words = ["submit", "--gpus", "2", "--site", "local", "--runtime", "native", "--time", "5:00", "--env", "A=b c"]
    words += ["--env", "-B", "--set", "batch-size=3", "--set", "channels-last=true", "--dry-run", "--", "--groups", "2"]
    options = {"batch-size": 3, "channels-last": True}
    values: dict[str, Any] = {"time": 300, "env": {"A": "b c", "B": None}, "set": options}
    before = sorted(tmp_path.rglob("*"))
    mine = submit(2, ["--groups", "2"], **NATIVE, **values, dry_run=True)
    assert sorted(tmp_path.rglob("*")) == before
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    program = [sys.executable, "-m", "runner", *words]
    done = subprocess.run(program, env=environment, capture_output=True, text=True, check=False)
    assert mine.script == done.stdout


def test_it_takes_the_options_of_the_command_line() -> None:
    @click.command()
    @job_options()
    def command(**_values: object) -> None: ...

    options = [[name for name in each.opts if name.startswith("--")] for each in command.params if each.expose_value]
    given = {names[0].removeprefix("--").replace("-", "_") for names in options if names}
    assert set(Options.__annotations__) == given - {"gpus", "dry_run", "full", "json"}


def test_importing_the_package_imports_none_of_it() -> None:
    code = (
        "import sys, runner; print([each for each in sys.modules if each.startswith(('runner.', 'click', 'msgspec'))])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
    code = "import sys; from runner import submit; submit(1, ['true'], site='local', runtime='native', dry_run=True); "
    code += "print({'click', 'rich', 'runner.cli'} & sys.modules.keys())"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"
    with pytest.raises(AttributeError, match="no attribute 'sumbit'"):
        runner.sumbit  # type: ignore[attr-defined]  # noqa: B018


def test_a_comparison_is_that_of_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a, b = ([Run(run.path) for run in side] for side in measured_in_turns(tmp_path / "runs", "ABBABA", 1.1))
    made = compare(a, b, fail_below=0.95)
    assert (made.points[0].verdict, made.points[0].judgement) == ("faster", "good")
    texts = [",".join(str(run.directory) for run in side) for side in (a, b)]
    assert command_line(["compare", *texts, "--fail-below", "0.95", "--json"]) == Exit.GOOD
    printed = result(capsys.readouterr().out)
    assert printed["points"] == plain(made)["points"]
    assert compare(a[0], b[0]).points[0].verdict == "no verdict"


def test_a_report_is_written_only_where_an_output_is_named(tmp_path: Path) -> None:
    run = Run(measured_run(tmp_path / "runs", 0).path)
    before = {path.name for path in tmp_path.iterdir()}
    made = report(run)
    assert {path.name for path in tmp_path.iterdir()} == before
    assert made.rows[0].state == "proven" and made.files == ()
    before_mask = os.umask(0)
    try:
        assert "report.html" in report(str(run.directory), output=tmp_path / "here").files
    finally:
        os.umask(before_mask)
    assert not (tmp_path / "here").stat().st_mode & 0o022, "no other user can write there"
    assert (tmp_path / "here" / "report.png").is_file()


def test_a_bundle_is_made_and_verified(tmp_path: Path) -> None:
    a = [Run(measured_run(tmp_path / "runs", place).path) for place in range(2)]
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
    assert command_line([*words, "--assume", "spread=0:0.01:0.02", "--json"]) == Exit.GOOD
    assert result(capsys.readouterr().out) == plain(made)


BATCHES = {"set": {"batch-size": [8, 16], "window-seconds": 1}}
ALONE = {"arms": ["full", "solo"], "same_nodes": True, "solo_gpus": 1}  # of the node's two GPUs, one in each repeat


@pytest.mark.parametrize(
    ("values", "words", "launches"),
    [
        (BATCHES, "--set batch-size=8,16 --set window-seconds=1", 8),
        (ALONE, "--arms full,solo --same-nodes --solo-gpus 1", 6),
    ],
)
def test_a_dry_run_plans_the_study_of_the_command_line_and_changes_nothing(
    values: dict[str, Any], words: str, launches: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sorted(tmp_path.iterdir())
    made = scale([1, 2], **TIMED, **values, repeats=2, dry_run=True)
    assert sorted(tmp_path.iterdir()) == before
    shared = [f"--{name}={value}" for name, value in TIMED.items()]
    assert (
        command_line(["scale", "--gpus", "1,2", "--repeats", "2", *words.split(), *shared, "--dry-run", "--json"])
        == Exit.GOOD
    )
    assert result(capsys.readouterr().out) == plain(made)
    assert len(made.launches) == launches


OWN: Any = {"site": "local", "runtime": "native"}
WRONG_CALLS: dict[str, tuple[Callable[[], object], type[RunnerError], str]] = {
    "sizes of one text": (lambda: scale("1,2", **TIMED), UsageError, "sizes are one value"),  # type: ignore[arg-type]
    "no repeats": (lambda: scale([1], **TIMED, repeats=0), UsageError, "'repeats' cannot be read: it must be one"),
    "an option that is none": (lambda: scale([1], **TIMED, node=2), UsageError, "did you mean 'nodes'?"),  # type: ignore[call-overload]
    "a small budget": (lambda: scale([1, 2], **TIMED, budget=0.0), RefusedError, "the budget is 0"),
    "a size that is no number": (lambda: scale([1, "x"], **TIMED), UsageError, "must be a whole number"),  # type: ignore[list-item]
    "single GPUs without their arm": (lambda: scale([1], **TIMED, solo_gpus=1), UsageError, "no GPU is alone"),
    "no single GPU": (lambda: scale([1], **TIMED, solo_gpus=0), UsageError, "'solo_gpus' cannot be read"),
    "a chain of a sweep": (lambda: submit(1, until_done=True, sweep={"x": [1]}, **TIMED), UsageError, "no attempts"),
    "a chain without Slurm": (
        lambda: submit(1, ["true"], until_done=True, **OWN),
        RefusedError,
        "cannot queue the next",
    ),
    "a chain of no attempt": (
        lambda: submit(1, ["true"], until_done=True, attempts=0, **OWN),
        UsageError,
        "'attempts'",
    ),
    "no attempts": (lambda: scale([1], **TIMED, attempts=0), UsageError, "'attempts' cannot be read"),
    "a budget in words": (lambda: scale([1], **TIMED, budget="much"), UsageError, "must be a number"),  # type: ignore[call-overload]
    "a setting without a name": (lambda: scale([1], **TIMED, set={3: 4}), UsageError, "must be a text"),  # type: ignore[dict-item]
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


@pytest.mark.parametrize("case", WRONG_CALLS)
def test_what_is_wrong_is_an_error_of_the_runner(case: str, tmp_path: Path) -> None:
    call, kind, says = WRONG_CALLS[case]
    with pytest.raises(kind) as raised:
        call()
    assert says in str(raised.value)
    assert not (tmp_path / "runs").exists()


def test_a_sweep_is_checked_as_that_of_the_command_line() -> None:
    own: dict[str, Any] = {"site": "local", "runtime": "native", "command": ["true", "{lr}"], "name": "s"}
    shown = submit(gpus=1, sweep={"lr": [0.1, 0.2]}, dry_run=True, **own)
    assert shown.plan is not None
    assert "0.1" in shown.plan.program
    for sweep, at_once, says in (
        ({"lr": "0.1"}, None, "must be a list"),
        ({"k": [1]}, 2, "no {k}"),
        (None, 2, "sweep"),
    ):
        with pytest.raises(UsageError) as caught:
            submit(gpus=1, sweep=sweep, at_once=at_once, **own)
        assert says in str(caught.value)
    assert runs() == []
