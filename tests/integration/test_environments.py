"""Making an environment for jobs without a container, where it goes wrong; tests/long/sites has the whole of it."""

from __future__ import annotations

import fcntl
import os
import signal
from pathlib import Path

import pytest

from tests.support.commands import Runner
from tests.support.documents import result
from tests.support.waiting import until

pytestmark = pytest.mark.integration
NO_SUCH = ("--requirement", "torch==0.0.404")  # pip knows at once that there is none


@pytest.fixture
def local(tmp_path: Path) -> Runner:
    return Runner(Path("local"), tmp_path / "runs", tmp_path / "state", tmp_path)


def state(runner: Runner, at: Path) -> list[dict[str, object]]:
    found: list[dict[str, object]] = result(runner("env", "list", "--at", str(at), "--json", code=0).out)
    return found


def left(root: Path) -> list[str]:
    return sorted(path.name for path in root.iterdir() if path.is_dir())


def begun(root: Path) -> None:
    """Wait until the environment is being made."""
    until(lambda: list(root.glob("virtualenv-*/pyvenv.cfg")), "pyvenv.cfg", every_s=0.02)


def test_a_creation_that_fails_leaves_nothing_half_and_its_log(local: Runner, tmp_path: Path) -> None:
    at = tmp_path / "envs"
    failed = local("env", "create", "broken", "--at", str(at), *NO_SUCH, code=5)
    assert "the framework could not be installed" in failed.err
    assert "0.0.404" in (at / "broken/create.log").read_text()
    assert left(at / "broken") == []
    assert [each["whole"] for each in state(local, at)] == [False]
    refused = local("submit", "--gpus", "2", "--env-name", str(at / "broken"), code=3)
    assert "is not finished" in refused.err
    assert not local.runs.exists()


def test_a_creation_that_was_killed_is_waited_for_and_begun_anew(local: Runner, tmp_path: Path) -> None:
    """Its script goes on for a while: the next one neither shares its directory nor takes it for whole."""
    root = tmp_path / "envs/killed"
    words = ("env", "create", "killed", "--at", str(root.parent), *NO_SUCH)
    child = local.start(*words)
    begun(root)
    os.kill(child.pid, signal.SIGKILL)
    child.wait()
    with (root / "building").open() as lock, pytest.raises(BlockingIOError):
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    assert [each["whole"] for each in state(local, root.parent)] == [False]
    assert "the framework could not be installed" in local(*words, code=5).err
    assert left(root) == []


def test_a_creation_that_is_interrupted_ends_at_once(local: Runner, tmp_path: Path) -> None:
    root = tmp_path / "envs/interrupted"
    child = local.start("env", "create", "interrupted", "--at", str(root.parent), *NO_SUCH)
    begun(root)
    os.kill(child.pid, signal.SIGINT)
    assert child.wait(60) == 130
    assert left(root) == []


def test_a_python_without_horovod_is_not_proven(local: Runner) -> None:
    said = local("env", "check", "--site", "local", code=6)
    assert "its Horovod is not proven" in said.err
    assert "PROOF FAILED" in said.err


def test_a_missing_module_is_reported(local: Runner) -> None:
    said = local("env", "check", "--site", "local", "--module", "no/such", code=3)
    assert "could not be loaded" in said.err
