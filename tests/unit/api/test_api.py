"""gpu-runner from Python: the page on it, run cell by cell as in a notebook, and what is wrong."""

from __future__ import annotations

import inspect
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import msgspec
import pytest

import runner
from runner import CheckRefusedError, Options, Run, Study, runs, submit
from runner.cli import run as command_line
from runner.cli.job_options import job_options
from runner.cli.results import json_schema
from runner.core.errors import Exit, RefusedError, RunnerError, UsageError
from runner.jobs import directory
from runner.model.job import CommandLine
from tests.support.json_schema import faults
from tests.support.own_state import own_state

ROOT = Path(__file__).resolve().parents[3]
NATIVE: dict[str, Any] = {"site": "local", "runtime": "native"}


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
    assert len(found) == 12
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
    @job_options
    def command(**_values: object) -> None: ...

    options = [each for each in command.params if each.opts[0][0] == "-" and each.expose_value]
    given = {option.opts[0].lstrip("-").replace("-", "_") for option in options}
    assert set(Options.__annotations__) == given - {"gpus", "dry_run", "full", "json", "S"} | {"scheduler_option"}


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
