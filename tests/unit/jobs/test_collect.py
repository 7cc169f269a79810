"""What is read out of a run directory's logs."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from runner.jobs import directory
from runner.jobs.cancel import cancel
from runner.jobs.collect import collect
from runner.jobs.directory import RunDirectory
from runner.model.job import JobState
from runner.schedulers.slurm.client import Slurm
from tests.support.plans import PLAN

ENDED = JobState("ended", "FAILED", exit_code=1)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunDirectory:
    monkeypatch.setenv("RUNNER_STATE", str(tmp_path / "state"))
    made = directory.create(tmp_path / "runs", "probe-4", 0.0)
    made.write("plan.json", PLAN)
    return made


def test_what_srun_says_of_tasks(run: RunDirectory) -> None:
    """Lines as Slurm 22.05 writes them; the first word on a task counts."""
    (run.logs / "batch.err").write_text(
        "srun: error: dgx01: tasks 0-2,5: Exited with exit code 3\n"
        "srun: launch/slurm: _step_signal: Terminating StepId=5.1\n"
        "srun: error: dgx02: task 3: Out Of Memory\n"
        "srun: error: dgx01: task 0: Killed\n"
        "srun: error: Node failure on dgx02\n"
        "srun: error: task 6 launch failed: Slurmd could not connect IO\n"
        "the program says srun: error: dgx01: task 7: Killed\n"
    )
    evidence = collect(run, ENDED)
    three, io = "Exited with exit code 3", "launch failed: Slurmd could not connect IO"
    assert evidence.task_ends == {0: three, 1: three, 2: three, 5: three, 3: "Out Of Memory", 6: io}
    assert evidence.failed_nodes == ("dgx02",)
    assert not evidence.disk_full


def test_the_last_word_of_a_rank_that_left_no_record(run: RunDirectory) -> None:
    (run.logs / "rank-2.err").write_text("one\ncannot go on\n\n")
    assert collect(run, ENDED).rank_lines == {2: "cannot go on"}


def test_who_cancels_leaves_word(run: RunDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scancel = tmp_path / "scancel"
    scancel.write_text("#!/bin/sh\nexit 0\n")
    scancel.chmod(0o755)
    monkeypatch.setenv("LOGNAME", "ann")
    cancel(run, Slurm(tmp_path), "5")
    cancelled = collect(run, ENDED).cancelled
    assert cancelled is not None
    assert msgspec.to_builtins(cancelled)["user"] == "ann"
