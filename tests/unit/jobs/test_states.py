"""From a submission to the state of its job, also of a launch in a study's one allocation."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from runner.backends import schedulers
from runner.backends.schedulers.slurm.client import Slurm
from runner.core import files, ownership
from runner.core.errors import Exit, InfrastructureError, RunnerError, UnknownStateError
from runner.jobs.directory import Run
from runner.jobs.life import standing
from runner.jobs.scripts import JobOfOthers, OfScript, end_of
from runner.jobs.seals import orders
from runner.jobs.states import Left, cancel_run, connected, launch_state, left_by, never_began, query, scheduler_of
from runner.jobs.submission import Submission, submit
from runner.jobs.watch import presence
from runner.model.job import ExitMarker, JobState, SchedulerRecord, Submitted
from runner.model.step import JobScript
from runner.model.verdict import Verdict
from tests.support.evidence import start, write_record
from tests.support.limits import largest_file
from tests.support.measured_runs import measured_run
from tests.support.plans import PLAN
from tests.support.shell_files import stand_in

Submit = Callable[[Path], Run]


@pytest.fixture
def submission(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Submit:
    """Submits a recipe of 20 kB through the sbatch that lies in the given directory."""
    monkeypatch.setenv("RUNNER_STATE", str(tmp_path / "state"))
    for folder in ("lib", "recipe"):
        (tmp_path / folder).mkdir()
    (tmp_path / "recipe" / "main.py").write_text("#" * 20_000)

    def to(clients: Path) -> Run:
        root, library, recipe = (tmp_path / name for name in ("runs", "lib", "recipe"))
        return submit(Submission(PLAN, JobScript("#!/bin/sh\n", {}), (), root, library, recipe, Slurm(clients)))

    return to


def test_a_run_directory_that_cannot_be_filled_is_removed(submission: Submit, tmp_path: Path) -> None:
    with largest_file(10_000), pytest.raises(RunnerError, match="File too large") as caught:
        submission(tmp_path)
    assert isinstance(caught.value, InfrastructureError)
    assert "nothing was submitted" in caught.value.fix
    assert list((tmp_path / "runs").glob("[!.]*")) == list((tmp_path / "state" / "runs").iterdir()) == []


def test_the_id_of_a_job_that_ended_before_its_silent_sbatch_is_known(
    submission: Submit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By then the queue may have forgotten it."""
    monkeypatch.setattr(schedulers, "TIMEOUT_S", 1.0)
    for name, body in (("sbatch", 'echo \'{"job":"7","exit":0,"end_s":1}\' >exit.json; exec sleep 30'), ("squeue", "")):
        stand_in(tmp_path, name, body)
    assert scheduler_of(submission(tmp_path))[1] == "7"


def test_an_interrupt_while_sbatch_runs(submission: Submit, tmp_path: Path) -> None:
    stand_in(tmp_path, "sbatch", "kill -INT $PPID\nexec sleep 30")
    with pytest.raises(UnknownStateError, match="may have accepted the job") as caught:
        submission(tmp_path)
    assert caught.value.code == Exit.INTERRUPTED
    (run,) = (tmp_path / "runs").glob("[!.]*")
    assert run.name in caught.value.fix
    stand_in(tmp_path, "squeue", f"echo '7|PENDING|None|{run}'")
    assert scheduler_of(Run(run))[1] == "7"


def test_programs_that_another_user_may_change_are_run_only_for_runs_of_ones_own(
    submission: Submit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run directory of another user, or a copy of one, may name any: `status` of it would run them."""
    clients = tmp_path / "clients"
    clients.mkdir()
    for name, body in (("sbatch", "echo 7"), ("squeue", f"touch '{tmp_path}/planted'")):
        stand_in(clients, name, body)
    own = submission(clients)
    assert own.name == PLAN.job_name != PLAN.recipe
    copy = Run(tmp_path / "copy" / own.run_id)
    shutil.copytree(own.path, copy.path)
    assert scheduler_of(copy)[1] == "7"
    clients.chmod(0o777)
    assert scheduler_of(own)[1] == "7"
    for relative in (False, True):
        if relative:
            record = copy.read("job.json", Submitted)
            assert record is not None
            copy.write("job.json", msgspec.structs.replace(record, clients="clients"))
            with pytest.raises(OSError, match="changed since"):
                standing(copy)
            (orders() / own.run_id).unlink()
        with pytest.raises(UnknownStateError, match="are not root's alone"):
            standing(copy)
    monkeypatch.setattr(Run, "owner", os.geteuid() + 1)  # another's lies where this user's was
    for run in (copy, own):
        record = run.submitted
        assert record is not None
        states, (error,) = query([(run, record)])
        assert (states, error.where) == ({}, str(run.path / "job.json"))
        end_of(run, msgspec.structs.replace(record, record=SchedulerRecord(RUNNING)), RUNNING)
        before = run.content("job.json")
        run.keep("job.json", record)
        assert run.content("job.json") == before, "nothing is left in another's"
    assert not (tmp_path / "planted").exists()


def test_what_a_job_changed_in_its_run_directory_is_no_order(submission: Submit, tmp_path: Path) -> None:
    """Its container may write there, and would name programs of its own, or another job for `cancel`."""
    clients = tmp_path / "clients"
    clients.mkdir()
    for name, body in (("sbatch", "echo 7"), ("squeue", ""), ("scancel", "")):
        stand_in(clients, name, f"echo {name} >>{tmp_path}/called; {body}")
    own = submission(clients)
    evil = own.path / "evil"
    evil.mkdir()
    stand_in(evil, "squeue", f"touch {tmp_path}/planted")
    document = json.loads(own.content("job.json"))
    for changed in ({"clients": str(evil)}, {"job_id": "8"}, {"place": "/elsewhere"}):
        files.write(own.path / "job.json", json.dumps(document | changed).encode())
        for verb in (standing, cancel_run):
            with pytest.raises(OSError, match="changed since the run was submitted"):
                verb(own)
    assert not (tmp_path / "planted").exists() and (tmp_path / "called").read_text() == "sbatch\n"
    # As it was written first, before there was an id: that of the records, which is no option of a client.
    write_record(own, start(0, job_id="-uroot"))
    own.write("job.json", msgspec.convert(document | {"job_id": ""}, Submitted))
    with pytest.raises(UnknownStateError, match="unknown whether the scheduler accepted it"):
        cancel_run(own)
    own.write("job.json", msgspec.convert(document, Submitted))
    assert scheduler_of(own)[1] == "7"


def test_programs_are_run_where_they_were_when_they_were_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, link = tmp_path / "real", tmp_path / "link"
    real.mkdir(mode=0o755)
    link.symlink_to(real)
    closed = ownership.closed_to_others(link)
    real.chmod(0o775)
    assert (closed, ownership.closed_to_others(link)) == (real.resolve(), None)
    link.unlink()
    link.symlink_to("/usr/bin")
    monkeypatch.setattr(Path, "resolve", lambda path, **_: path)  # it was a directory then
    assert ownership.closed_to_others(link) is None


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


@pytest.mark.parametrize("listed", [True, False])
@pytest.mark.parametrize(
    ("judged", "has_ranks", "began"),
    [("", False, False), ("cancelled", False, False), ("cancelled", True, True), ("failed", False, True),
     ("not-proven", True, True), ("ran", False, True), ("measured", False, True)],
)  # fmt: skip
def test_a_launch_that_had_begun_has_also_when_nothing_in_its_directory_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, judged: Any, has_ranks: bool, began: bool, listed: bool
) -> None:
    """By what it was when it was first judged, and by the allocation, wherever the study was moved since."""
    monkeypatch.setenv("RUNNER_STATE", str(tmp_path / "state"))
    run = Run(tmp_path / "launches/g0001-full-r1/20260101-000000-train-1")
    run.ranks.mkdir(parents=True)
    (run.ranks / "0.start.json").touch()
    if not has_ranks:
        shutil.rmtree(run.ranks)
    if judged:
        run.write("verdict.json", Verdict(judged))
    shutil.rmtree(run.ranks, ignore_errors=True)
    own = tmp_path / "allocations/1"
    own.mkdir(parents=True)
    (own / "launches").write_text(f"1.5\t2.5\t0\t/before/launches/KEY/{run.run_id if listed else 'x'}\n")
    record = Submitted("slurm", "7", "", "", 1.0, allocation="/before/allocations/1")
    assert never_began(run, record, JobState("ended", "CANCELLED")) != (began or listed)


def test_an_allocation_is_looked_for_in_the_runs_own_study(tmp_path: Path) -> None:
    run = Run(tmp_path / "study/launches/KEY/20260101-000000-train-1")
    for place in ("study/allocations/1", "outside"):
        (tmp_path / place).mkdir(parents=True)
        (tmp_path / place / "launches").write_text(f"1.5\t2.5\t0\t/before/launches/KEY/{run.run_id}\n")
    recorded = ("/before/allocations/1", "/before/../outside", "/before/launches/..", "/")
    assert [run.status_in(each) for each in recorded] == [0, None, None, None]


def test_what_lies_where_a_job_of_others_starts_is_not_its(tmp_path: Path) -> None:
    run = measured_run(tmp_path, 0)
    job = JobOfOthers("7", SchedulerRecord(RUNNING, directory=str(run.path)), "slurm", "")
    assert (job.records.listing(), job.records.start(0), job.content("plan.json")) == ({}, None, b"")
    assert (job.plan, job.has_marker, any(vars(presence(job)).values())) == (None, False, False)


def test_a_record_of_a_script_that_its_scheduler_keeps_none_of_is_no_obstacle(tmp_path: Path) -> None:
    record = Submitted("local", "7.7.7ea6bc94", "", "", 0.0, record=SchedulerRecord(RUNNING))
    assert end_of(Run(tmp_path), record, RUNNING).state == RUNNING
    assert not isinstance(connected(Run(tmp_path), record), OfScript), "it looks into no other directory"


def test_a_launch_that_was_over_before_its_allocation_was_lost_is_complete(tmp_path: Path) -> None:
    """Its own script ended well, and so did every rank: what then ended the allocation took nothing from it."""
    run = measured_run(tmp_path, 0)
    (run.path / "begun").touch()
    assert launch_state(left_by(run.path), ended("CANCELLED")).name == "COMPLETED"
    (run.ranks / "3.exit.json").unlink()
    assert launch_state(left_by(run.path), ended("NODE_FAIL")).name == "NODE_FAIL", "srun returned 0 for a lost node"


def test_a_plan_of_a_billion_ranks_is_none(tmp_path: Path) -> None:
    run = measured_run(tmp_path, 0)
    plan = json.loads(run.content("plan.json"))
    (run.path / "plan.json").write_text(json.dumps(plan | {"tasks_per_node": [10**9]}))
    assert run.plan is None
