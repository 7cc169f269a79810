"""The state of a launch in a study's one allocation, by what it left and what is known of the allocation."""

from __future__ import annotations

from pathlib import Path

import pytest

from runner.jobs.directory import Run
from runner.jobs.states import Left, launch_state, left_by, never_began
from runner.model.job import ExitMarker, JobState, Submitted
from tests.support.measured_runs import measured_run

RUNNING = JobState("running", "RUNNING", nodes="dgx[01-02]")
WHOLE, FAILED = ExitMarker("7", 0, 1.0), ExitMarker("7", 3, 1.0)
TERMINATED = ExitMarker("7", 143, 1.0, "CANCELLED")


def ended(name: str) -> JobState:
    return JobState("ended", name, nodes="dgx[01-02]")


@pytest.mark.parametrize(
    ("marker", "allocation", "begun", "by_itself", "phase", "name"),
    [
        (None, JobState("pending", "PENDING", "Priority"), False, False, "pending", "PENDING"),
        (None, RUNNING, False, False, "pending", "PENDING"),
        (None, RUNNING, True, False, "running", "RUNNING"),
        (WHOLE, RUNNING, True, True, "ended", "COMPLETED"),
        (FAILED, RUNNING, True, True, "ended", "FAILED"),
        (WHOLE, ended("NODE_FAIL"), True, True, "ended", "COMPLETED"),
        (WHOLE, JobState("unknown"), True, True, "ended", "COMPLETED"),
        # not known yet whether it ended alone or with the allocation
        (WHOLE, RUNNING, True, False, "running", "RUNNING"),
        (TERMINATED, RUNNING, True, False, "running", "RUNNING"),
        # what ended the allocation ended the launch: Slurm gives srun 0 where a node was set down
        (None, ended("NODE_FAIL"), True, False, "ended", "NODE_FAIL"),
        (WHOLE, ended("NODE_FAIL"), True, False, "ended", "NODE_FAIL"),
        (FAILED, ended("TIMEOUT"), True, False, "ended", "TIMEOUT"),
        (TERMINATED, ended("PREEMPTED"), True, False, "ended", "PREEMPTED"),
        (TERMINATED, ended("CANCELLED"), True, False, "ended", "CANCELLED"),
        (None, ended("COMPLETED"), True, False, "ended", "CANCELLED"),
        (FAILED, ended("COMPLETED"), True, False, "ended", "FAILED"),
        (FAILED, JobState("unknown"), True, False, "ended", "FAILED"),
        # the launch alone was cancelled
        (TERMINATED, RUNNING, True, True, "ended", "CANCELLED"),
        (TERMINATED, ended("TIMEOUT"), True, True, "ended", "CANCELLED"),
        (TERMINATED, ended("COMPLETED"), False, True, "ended", "CANCELLED"),
        # its turn never came
        (None, ended("TIMEOUT"), False, False, "ended", "CANCELLED"),
        (None, JobState("unknown"), True, False, "unknown", ""),
    ],
)
def test_the_state_of_a_launch(
    marker: ExitMarker | None, allocation: JobState, begun: bool, by_itself: bool, phase: str, name: str
) -> None:
    state = launch_state(Left(marker, begun, by_itself), allocation)
    assert (state.phase, state.name) == (phase, name)
    if phase == "ended" and marker is not None:
        assert state.exit_code == marker.exit


def test_a_launch_that_never_began_is_no_attempt(tmp_path: Path) -> None:
    run = Run(tmp_path)
    record = Submitted("slurm", "7", "", "", 1.0, allocation="/s/allocations/1")
    assert never_began(run, record, JobState("ended", "CANCELLED"))
    assert not never_began(run, record, JobState("pending"))
    assert not never_began(run, record, None)
    assert not never_began(run, Submitted("slurm", "7", "", "", 1.0), JobState("ended", "CANCELLED")), (
        "a job of its own"
    )
    (tmp_path / "verdict.json").write_text("{}")
    assert never_began(run, record, None), "judged while the scheduler still knew"
    (tmp_path / "begun").touch()
    assert not never_began(run, record, JobState("ended", "CANCELLED"))


def test_a_launch_that_was_over_before_its_allocation_was_lost_is_complete(tmp_path: Path) -> None:
    """Its own script ended well, and so did every rank: what then ended the allocation took nothing from it."""
    run = measured_run(tmp_path, 0)
    (run.path / "begun").touch()
    assert launch_state(left_by(run.path), ended("CANCELLED")).name == "COMPLETED"
    (run.ranks / "3.exit.json").unlink()
    assert launch_state(left_by(run.path), ended("NODE_FAIL")).name == "NODE_FAIL", "srun returned 0 for a lost node"
