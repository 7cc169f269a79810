"""This machine as a scheduler, with real processes: a job is known by its start, and its end by what it left."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest

from runner.errors import NotAcceptedError
from runner.model.job import JobState
from runner.schedulers.local.client import Local
from tests.support.waiting import until

HERE = os.uname().nodename


@pytest.fixture
def run(tmp_path: Path) -> Path:
    (tmp_path / "logs").mkdir()
    return tmp_path


def submitted(run: Path, script: str) -> str:
    (run / "job.sh").write_text(script)
    return Local().submit(run, "job.sh")


def leaves(run: Path, exit_code: int, why: str = "") -> None:
    (run / "exit.json").write_text(json.dumps({"job": "x", "exit": exit_code, "end_s": 0.0, "why": why}))


@pytest.mark.parametrize(
    ("exit_code", "why", "name"),
    [(0, "", "COMPLETED"), (7, "", "FAILED"), (7, "FAILED", "FAILED"), (124, "TIMEOUT", "TIMEOUT"),
     (143, "CANCELLED", "CANCELLED")],
)  # fmt: skip
def test_an_end_is_recognised_by_its_marker(run: Path, exit_code: int, why: str, name: str) -> None:
    job = submitted(run, "true")
    leaves(run, exit_code, why)
    until(lambda: Local().state(job, run).phase == "ended", every_s=0.02)
    assert Local().state(job, run) == JobState("ended", name, nodes=HERE, exit_code=exit_code)


def test_a_job_is_found_again_by_what_it_left_itself(run: Path) -> None:
    assert Local().find(run) is None
    (run / "job.id").write_text("torn")
    assert Local().find(run) is None
    (run / "job.id").write_text("12.34.0123abcd\n")
    assert Local().find(run) == "12.34.0123abcd"


def test_a_process_of_the_same_number_is_another_job(run: Path) -> None:
    """Its start differs, or the boot does: it is neither awaited nor ended."""
    stranger = subprocess.Popen(["sleep", "300"], start_new_session=False)
    try:
        boot = submitted(run, "true").split(".")[2]
        assert Local().state(f"{stranger.pid}.1.{boot}", run).name == "KILLED"
        assert Local().state(f"{stranger.pid}.1.00000000", run).phase == "unknown"
        for job in (f"{stranger.pid}.1.{boot}", f"{stranger.pid}.1.00000000", "nonsense", f"1.1.{boot}"):
            Local().cancel(job)
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


def test_what_is_left_of_a_killed_script_is_still_the_job(run: Path) -> None:
    job = submitted(run, "sleep 300 & echo $! >child; wait")
    until(lambda: (run / "child").exists() and (run / "child").read_text() != "", every_s=0.02)
    os.kill(int(job.split(".")[0]), signal.SIGKILL)
    assert Local().state(job, run) == JobState("running", "RUNNING", nodes=HERE)
    Local().cancel(job)
    assert Local().state(job, run) == JobState("ended", "KILLED", nodes=HERE)


def test_a_script_that_ignores_sigterm_is_killed(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runner.schedulers.local.client.GRACE_S", 0.5)
    job = submitted(run, "trap '' TERM; touch deaf; while :; do sleep 0.1; done")
    until((run / "deaf").exists, every_s=0.02)
    Local().cancel(job)
    assert Local().state(job, run).name == "KILLED"


def test_a_job_that_cannot_be_started(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(run))
    with pytest.raises(NotAcceptedError, match="bash"):
        submitted(run, "true")
