"""Native jobs run in the environment that the user is in, or say that they don't."""

from __future__ import annotations

import json
import os
import platform
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from runner.core.errors import Exit, RefusedError, UsageError
from runner.core.paths import share
from runner.environments import directory
from runner.model.image import Activate, Environment, Setup
from runner.recipes import loader as recipes
from tests.support.commands import Call
from tests.support.shell_files import stand_in

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


def test_what_is_gone_after_it_was_read_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a place of all a stranger's could come and go."""
    monkeypatch.setattr(directory, "read", lambda _root: object())
    monkeypatch.setattr(Path, "is_file", lambda _path: True)
    with pytest.raises(RefusedError, match="not there any more"):
        directory.find("foo", str(tmp_path), "box")
    with pytest.raises(UsageError, match="not there any more"):
        recipes.directory_of("foo", tmp_path)


def python_at(root: Path, script: str) -> Path:
    """A ``bin/python3`` that is a script."""
    (root / "bin").mkdir(parents=True, exist_ok=True)
    stand_in(root / "bin", "python3", script)
    return root / "bin/python3"


def conda_at(made: Path, *installations: Path) -> Path:
    """A conda environment, as far as a directory shows it, and the installations with conda.sh."""
    (made / "conda-meta").mkdir(parents=True)
    python_at(made, f"echo '{json.dumps([str(made), '3.9.1'])}'")
    for root in installations:
        (root / "etc/profile.d").mkdir(parents=True)
        (root / "etc/profile.d/conda.sh").touch()
    return made


def in_shell(monkeypatch: pytest.MonkeyPatch, environment: Path) -> tuple[Environment | None, str]:
    """What is made of a shell that is in an environment."""
    monkeypatch.setenv("PATH", f"{environment}/bin:/usr/bin:/bin")
    return directory.environment_of_shell()


def test_a_virtual_environment_is_what_its_python_says_whatever_it_prints_before(
    venv: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python_at(tmp_path, f"echo Loading modules; exec '{venv}/bin/python3' \"$@\"")
    for shell in (venv, tmp_path):
        own, note = in_shell(monkeypatch, shell)
        assert own is not None, note
        assert (own.directory, own.kind, own.python) == (str(venv), "virtualenv", platform.python_version())
        assert own.setup == Setup(activate=Activate(virtualenv=str(venv)))
    monkeypatch.setenv("VIRTUAL_ENV", str(venv))  # left over
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    assert directory.environment_of_shell() == (None, "")


@pytest.mark.parametrize("said", ["nonsense", "", "[1]", "null", '["\\ud800", "3"]', '["/", 3]'])
def test_a_python_that_says_something_else_is_refused(said: str, tmp_path: Path) -> None:
    python = python_at(tmp_path, f"echo '{said}'")
    with pytest.raises(RefusedError, match="does not say which environment it is of") as error:
        directory.environment_of_directory(tmp_path)
    assert error.value.where == str(python)


def test_a_conda_environment_is_activated_by_its_conda(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The one that it lies in, the shell's, or the one that made it."""
    conda = tmp_path / "my conda"
    below = conda_at(conda / "envs/hvd", conda)
    own, _ = in_shell(monkeypatch, below)
    assert own is not None
    assert own.setup == Setup(conda=str(conda), activate=Activate(conda=str(below)))

    apart = conda_at(tmp_path / "elsewhere/envs/own")
    own, note = in_shell(monkeypatch, apart)
    assert (own, "is active in this shell and NOT used: no conda" in note) == (None, True)
    with pytest.raises(RefusedError, match="no conda that activates") as caught:
        directory.environment_of_directory(apart)
    assert "CONDA_EXE" in caught.value.fix
    with monkeypatch.context() as shell:
        shell.setenv("CONDA_EXE", f"{conda}/bin/conda")
        own = directory.environment_of_directory(apart)
        assert own is not None
        assert own.setup.conda == str(conda)
    command = f"{conda}/bin/conda create --prefix {apart} python=3.11"
    lines = ("==> 2026-11-22 12:54:46 <==", f"# cmd: {command}", "# conda version: 26.7.1", "+x::python-3.11.7-0")
    (apart / "conda-meta/history").write_text("\n".join(lines) + "\n")
    own = directory.environment_of_directory(apart)
    assert own is not None
    assert own.setup.conda == str(conda)


NODE = "node: {gpus: 4, cores: 64, memory_mb: 1000}\n"


@pytest.mark.parametrize(
    ("site", "activates", "notes"),
    [
        ("", True, False),
        ("extends: box\nways: {native: {setup: {modules: [python/3.11]}}}\n", False, True),
        (f"extends: slurm\nruntimes: [native]\n{NODE}", True, False),
        (f"extends: slurm\nruntimes: [native]\n{NODE}ways: {{native: {{setup: {{modules: [pytorch/2.1]}}}}}}\n", False,
         True),
    ],
)  # fmt: skip
def test_the_job_of_a_shell_in_an_environment_activates_it_unless_the_site_brings_one(
    site: str, activates: bool, notes: bool, venv: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, call: Call
) -> None:
    job = [*JOB, "--", "true"]
    if site:
        (tmp_path / "ours.yaml").write_text(f"name: ours\n{site}")
        job[2] = str(tmp_path / "ours.yaml")
    monkeypatch.setenv("PATH", f"{venv}/bin:{os.environ['PATH']}")
    printed = call(*job)
    assert (f"source '{venv}/bin/activate'" in printed.out.replace("'\\''", "")) is activates
    assert ("module load p" in printed.out) is notes
    unused = f"environment: {venv} is active in this shell and NOT used: the site ours has a setup of its own"
    assert (unused in printed.err, f"--env-name {shlex.quote(str(venv))} uses it" in printed.err) == (notes, notes)
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    assert "activate" not in call(*job).out


def test_a_directory_of_ones_own_is_an_environment(venv: Path, tmp_path: Path, call: Call) -> None:
    made = conda_at(tmp_path / "conda/envs/own", tmp_path / "conda")
    job = [*JOB[:5], "--dry-run", "--env-name"]
    said = call(*job, str(made), "--", "python", "x.py").out.replace(" \\\n  ", " ")
    assert f"source {tmp_path}/conda/etc/profile.d/conda.sh" in said
    assert f"conda activate {made}" in said
    assert f"{venv}/bin/activate" in call(*job, str(venv), "--", "python", "x.py").out
    lacks = f"{venv}/bin/python3 (Python {platform.python_version().rpartition('.')[0]}) has no"
    assert lacks in call(*job, str(venv), code=Exit.REFUSED).err, "the default recipe needs what this one has not"


@pytest.mark.parametrize(
    ("lost", "says"),
    [
        ("bin/python3", "its bin/python3 leads to /no such python, which is not"),
        ("bin/activate", "it has no bin/activate"),
        ("pyvenv.cfg", r"it is no virtual environment \(no pyvenv.cfg in it\) and no conda environment"),
    ],
)
def test_a_virtual_environment_that_has_lost_something_is_there_and_says_what(
    tmp_path: Path, venv: Path, lost: str, says: str
) -> None:
    root = tmp_path / "broken"
    shutil.copytree(venv, root, symlinks=True)
    (root / lost).unlink()
    if lost == "bin/python3":
        (root / lost).symlink_to("/no such python")
    with pytest.raises(RefusedError, match=f"broken cannot be used: {says}"):
        directory.find(str(root), "", "site")


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
