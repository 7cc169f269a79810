"""Native jobs run in the environment that the user is in, or say that they don't."""

from __future__ import annotations

import json
import os
import platform
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from runner.cli import run
from runner.core.errors import Exit, RefusedError
from runner.core.paths import share
from runner.environments import directory
from runner.environments import directory as own
from runner.model.image import Activate, Setup
from tests.support.commands import Call

JOB = ["submit", "--site", "box", "--gpus", "2", "--runtime", "native", "--dry-run"]


@pytest.fixture(scope="module")
def venv(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment with a name that nothing may take apart."""
    directory = tmp_path_factory.mktemp("own") / "my env é"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", directory], check=True)
    return directory


@pytest.fixture(autouse=True)
def _shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("VIRTUAL_ENV", "CONDA_PREFIX", "CONDA_EXE"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("RUNNER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("RUNNER_STATE", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)


def conda_at(root: Path, name: str) -> Path:
    """A conda environment, as far as a directory shows it, in an installation with conda.sh."""
    made = root / "envs" / name
    (made / "conda-meta").mkdir(parents=True)
    (made / "bin").mkdir()
    (made / "bin/python3").write_text(f"#!/bin/sh\necho '{json.dumps([str(made), '3.9.1'])}'\n")
    (made / "bin/python3").chmod(0o755)
    (root / "etc/profile.d").mkdir(parents=True)
    (root / "etc/profile.d/conda.sh").touch()
    return made


def started_by(root: Path, script: str) -> Path:
    """A ``bin/python3`` that is a script."""
    (root / "bin").mkdir()
    python = root / "bin/python3"
    python.write_text(f"#!/bin/sh\n{script}\n")
    python.chmod(0o755)
    return python


def test_a_virtual_environment_is_what_its_python_says(venv: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{venv}/bin:/usr/bin:/bin")
    found, note = own.environment_of_shell()
    assert (found is not None, note) == (True, "")
    assert found is not None
    assert (found.directory, found.kind, found.python) == (str(venv), "virtualenv", platform.python_version())
    assert found.setup == Setup(activate=Activate(virtualenv=str(venv)))


def test_a_banner_of_a_python_is_passed_over(venv: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started_by(tmp_path, f"echo Loading modules; exec '{venv}/bin/python3' \"$@\"")
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:/usr/bin:/bin")
    found, _ = own.environment_of_shell()
    assert found is not None
    assert found.directory == str(venv)


@pytest.mark.parametrize("said", ["nonsense", "", "[1]", "null", '["\\ud800", "3"]', '["/", 3]'])
def test_a_python_that_says_something_else_is_refused(said: str, tmp_path: Path) -> None:
    python = started_by(tmp_path, f"echo '{said}'")
    with pytest.raises(RefusedError, match="does not say which environment it is of") as error:
        own.environment_of_directory(tmp_path)
    assert error.value.where == str(python)


def test_a_variable_that_is_left_over_makes_no_environment(venv: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VIRTUAL_ENV", str(venv))
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    assert own.environment_of_shell() == (None, "")


def test_a_conda_environment_is_activated_by_its_conda(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = conda_at(tmp_path / "mini conda", "hvd")
    monkeypatch.setenv("PATH", f"{made}/bin:/usr/bin:/bin")
    found, _ = own.environment_of_shell()
    assert found is not None
    assert found.setup == Setup(conda=str(tmp_path / "mini conda"), activate=Activate(conda=str(made)))
    elsewhere = tmp_path / "elsewhere"
    made.rename(elsewhere)
    (elsewhere / "bin/python3").write_text(f"#!/bin/sh\necho '{json.dumps([str(elsewhere), '3.9.1'])}'\n")
    monkeypatch.setenv("PATH", f"{elsewhere}/bin:/usr/bin:/bin")
    found, note = own.environment_of_shell()
    assert (found, "is active in this shell and NOT used: no conda" in note) == (None, True)
    monkeypatch.setenv("CONDA_EXE", str(tmp_path / "mini conda/bin/conda"))
    found, note = own.environment_of_shell()
    assert found is not None
    assert found.setup.conda == str(tmp_path / "mini conda")


def test_the_job_of_a_shell_in_an_environment_activates_it(
    venv: Path, monkeypatch: pytest.MonkeyPatch, call: Call
) -> None:
    monkeypatch.setenv("PATH", f"{venv}/bin:/usr/bin:/bin")
    assert f"source '{venv}/bin/activate'" in call(*JOB, "--", "python", "train.py").out.replace("'\\''", "")
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    assert "activate" not in call(*JOB, "--", "python", "train.py").out


def test_a_site_that_brings_an_environment_is_taken_at_its_word(
    venv: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, call: Call
) -> None:
    site = tmp_path / "ours.yaml"
    site.write_text("name: ours\nextends: box\nways: {native: {setup: {modules: [python/3.11]}}}\n")
    monkeypatch.setenv("PATH", f"{venv}/bin:/usr/bin:/bin")
    job = [*JOB, "--", "python", "train.py"]
    job[2] = str(site)
    said = call(*job).out
    assert "module load python/3.11" in said
    assert "activate" not in said


def test_a_directory_of_ones_own_is_an_environment(
    venv: Path, tmp_path: Path, call: Call, capfd: pytest.CaptureFixture[str]
) -> None:
    made = conda_at(tmp_path / "conda", "own")
    job = [*JOB[:5], "--dry-run", "--env-name"]
    said = call(*job, str(made), "--", "python", "x.py").out.replace(" \\\n  ", " ")
    assert f"source {tmp_path}/conda/etc/profile.d/conda.sh" in said
    assert f"conda activate {made}" in said
    assert f"{venv}/bin/activate" in call(*job, str(venv), "--", "python", "x.py").out
    assert run([*job, str(venv)]) == Exit.REFUSED, "the default recipe needs what this one has not"
    assert (
        f"{venv}/bin/python3 (Python {platform.python_version().rpartition('.')[0]}) has no" in capfd.readouterr().err
    )
    (tmp_path / "empty/bin").mkdir(parents=True)
    said = call(*job, str(tmp_path / "empty"), "--", "x", code=Exit.REFUSED).err
    assert "empty cannot be used: it is no virtual environment (no pyvenv.cfg" in said
    assert "the environment none is not there" in call(*job, str(tmp_path / "none"), "--", "x", code=Exit.REFUSED).err


@pytest.mark.parametrize("lost", ["bin/python3", "bin/activate"])
def test_a_virtual_environment_that_has_lost_something_is_there_and_says_what(tmp_path: Path, lost: str) -> None:
    root = tmp_path / "broken"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", root], check=True)
    (root / lost).unlink()
    if lost == "bin/python3":
        (root / lost).symlink_to("/no such python")
    with pytest.raises(
        RefusedError,
        match="broken cannot be used: its bin/python3 leads to /no such python, which is not"
        if lost == "bin/python3"
        else "broken cannot be used: it has no bin/activate",
    ):
        directory.find(str(root), "", "site")


@pytest.mark.parametrize("setup", [True, False])
def test_a_site_with_a_setup_of_its_own_says_that_the_shells_environment_is_unused(
    venv: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Call, setup: bool
) -> None:
    site = tmp_path / "ours.yaml"
    own_setup = "ways: {native: {setup: {modules: [pytorch/2.1]}}}\n" if setup else ""
    node = "node: {gpus: 4, cores: 64, memory_mb: 1000}\n"
    site.write_text(f"name: ours\nextends: slurm\nruntimes: [native]\n{node}{own_setup}")
    monkeypatch.setenv("PATH", f"{venv}/bin:{os.environ['PATH']}")
    job = ("submit", "--gpus", "1", "--site", str(site), "--runtime", "native", "--dry-run", "--", "true")
    said = call(*job).err
    unused = f"environment: {venv} is active in this shell and NOT used: the site ours has a setup of its own"
    assert (unused in said, f"--env-name {shlex.quote(str(venv))} uses it" in said) == (setup, setup)


def test_a_conda_environment_is_activated_by_the_conda_that_made_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = conda_at(tmp_path / "elsewhere", "own")
    (tmp_path / "my conda").mkdir()
    (tmp_path / "elsewhere/etc").rename(tmp_path / "my conda/etc")
    for name in ("CONDA_EXE", "CONDA_PREFIX"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    with pytest.raises(RefusedError, match="no conda that activates"):
        own.environment_of_directory(made)
    command = f"{tmp_path}/my conda/bin/conda create --prefix {made} python=3.11"
    lines = ("==> 2026-11-22 12:54:46 <==", f"# cmd: {command}", "# conda version: 26.7.1", "+x::python-3.11.7-0")
    (made / "conda-meta/history").write_text("\n".join(lines) + "\n")
    found = own.environment_of_directory(made)
    assert found is not None
    assert found.setup.conda == f"{tmp_path}/my conda"


def test_a_conda_environment_without_conda_is_refused_by_name(tmp_path: Path) -> None:
    made = conda_at(tmp_path / "conda", "own")
    (tmp_path / "conda/etc/profile.d/conda.sh").unlink()
    with pytest.raises(RefusedError, match="no conda that activates") as caught:
        own.environment_of_directory(made)
    assert "CONDA_EXE" in caught.value.fix


def launched(run_directory: Path, planned: dict[str, str]) -> subprocess.CompletedProcess[str]:
    run_directory.mkdir()
    (run_directory / "plan.json").write_text(json.dumps({"device": "cpu", "python": planned}))
    launcher = (sys.executable, str(share("recipes") / "lib/launch.py"), "--run", str(run_directory), "--world", "1")
    words = (*launcher, "--local-sizes", "1", "--", "echo", "it ran")
    return subprocess.run(words, capture_output=True, text=True, check=False, env={"PATH": "/usr/bin:/bin"}, timeout=60)


def test_each_node_compares_its_python_before_the_program_starts(venv: Path, tmp_path: Path) -> None:
    here = {"prefix": sys.prefix, "version": platform.python_version()}
    (tmp_path / "link").symlink_to(sys.prefix)
    for name, planned in (("same", here), ("by a link", {**here, "prefix": str(tmp_path / "link")})):
        done = launched(tmp_path / name, planned)
        assert (done.returncode, done.stdout) == (0, "it ran\n"), done.stderr
    for name, changed, says in (
        ("version", {"version": "3.99.0"}, "(Python 3.99.0); here python3 is "),
        ("directory", {"prefix": str(venv)}, f"for the environment {venv} (Python "),
        ("absent", {"prefix": "/nowhere/env"}, "which this node does not see; here python3 is "),
    ):
        done = launched(tmp_path / name, {**here, **changed})
        assert (done.returncode, done.stdout) == (122, "")
        assert "environment-differs: the job is " in done.stderr
        assert says in done.stderr
        assert json.loads((tmp_path / name / "ranks/0.exit.json").read_text())["error"] == "environment-differs"
