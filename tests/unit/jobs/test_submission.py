"""Submissions that come to nothing leave nothing, and those that are cut off say what is known."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from runner.backends import schedulers
from runner.backends.schedulers.slurm.client import Slurm
from runner.core.errors import Exit, InfrastructureError, RunnerError, UnknownStateError
from runner.jobs.directory import Run
from runner.jobs.life import standing
from runner.jobs.states import scheduler_of
from runner.jobs.submission import Submission, submit
from runner.model.job import Submitted
from runner.model.step import JobScript
from tests.support.limits import largest_file
from tests.support.plans import PLAN

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
    assert list((tmp_path / "runs").iterdir()) == list((tmp_path / "state" / "runs").iterdir()) == []


def test_the_id_of_a_job_that_ended_before_its_silent_sbatch_is_known(
    submission: Submit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By then the queue may have forgotten it."""
    monkeypatch.setattr(schedulers, "TIMEOUT_S", 1.0)
    for name, body in (("sbatch", 'echo \'{"job":"7","exit":0,"end_s":1}\' >exit.json; exec sleep 30'), ("squeue", "")):
        (tmp_path / name).write_text(f"#!/bin/sh\n{body}\n")
        (tmp_path / name).chmod(0o755)
    assert scheduler_of(submission(tmp_path))[1] == "7"


def test_an_interrupt_while_sbatch_runs(submission: Submit, tmp_path: Path) -> None:
    sbatch = tmp_path / "sbatch"
    sbatch.write_text("#!/bin/sh\nkill -INT $PPID\nexec sleep 30\n")
    sbatch.chmod(0o755)
    with pytest.raises(UnknownStateError, match="may have accepted the job") as caught:
        submission(tmp_path)
    assert caught.value.code == Exit.INTERRUPTED
    (run,) = (tmp_path / "runs").iterdir()
    assert run.name in caught.value.fix
    squeue = tmp_path / "squeue"
    squeue.write_text(f"#!/bin/sh\necho '7|PENDING|None|{run}'\n")
    squeue.chmod(0o755)
    assert scheduler_of(Run(run))[1] == "7"


def test_programs_that_another_user_may_change_are_run_only_for_runs_of_ones_own(
    submission: Submit, tmp_path: Path
) -> None:
    """The run directory of another user, or a copy of one, may name any: `status` of it would run them."""
    clients = tmp_path / "clients"
    clients.mkdir()
    for name, body in (("sbatch", "echo 7"), ("squeue", f"touch '{tmp_path}/planted'")):
        (clients / name).write_text(f"#!/bin/sh\n{body}\n")
        (clients / name).chmod(0o755)
    own = submission(clients)
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
        with pytest.raises(UnknownStateError, match="another user may change the scheduler's programs"):
            standing(copy)
    assert not (tmp_path / "planted").exists()


def test_a_run_has_the_name_that_the_user_gave_to_its_job(submission: Submit, tmp_path: Path) -> None:
    (tmp_path / "sbatch").write_text("#!/bin/sh\necho 7\n")
    (tmp_path / "sbatch").chmod(0o755)
    assert submission(tmp_path).name == PLAN.job_name != PLAN.recipe
