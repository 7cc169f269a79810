"""Chains: where there is none, what each attempt gets, and what an attempt that is not queued is to other commands."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from runner.cli import run
from runner.core.errors import Exit
from runner.jobs.directory import Run
from runner.study.directory import find_sweep
from tests.support.documents import result
from tests.support.shell_files import stand_in

OF = ("submit", "--gpus", "1", "--runtime", "native", "--name", "exp", "--time", "1:00:00")
SLURM = (*OF, "--site", "technion", "--force", "runtime-not-at-site", "--until-done")
PROGRAM = ("--", "python3", "t.py")


@pytest.fixture(autouse=True)
def clients(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The programs of a Slurm that takes every job, as number 7, and then knows nothing of it."""
    made = tmp_path / "clients"
    made.mkdir()
    stand_in(made, "sbatch", f"pwd >>{tmp_path}/submitted; echo 7")
    for name in ("scontrol", "squeue", "sacct", "scancel", "srun", "sinfo"):
        stand_in(made, name, "true")
    monkeypatch.setenv("PATH", f"{made}:{Path(sys.executable).parent}:{os.environ['PATH']}")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "t.py").touch()
    return made


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        ((*OF, "--site", "local", "--until-done", *PROGRAM), Exit.REFUSED, "queues the next attempt"),
        ((*SLURM, "--gpu-hours", "0.5", *PROGRAM), Exit.USAGE, "one attempt may take 1.00 GPU-hours"),
        ((*SLURM, "--sweep", "a=1", *PROGRAM), Exit.USAGE, "a sweep has no --until-done"),
        ((*SLURM, "--follow", *PROGRAM), Exit.USAGE, "--until-done has no --follow"),
        ((*OF, "--attempts", "3", *PROGRAM), Exit.USAGE, "--attempts is for attempts at one job"),
        ((*SLURM[:-1], "--until-done", "--name", "x" * 63, *PROGRAM), Exit.USAGE, "cannot be a job's name"),
    ],
)
def test_what_can_be_no_chain_is_refused(
    words: tuple[str, ...], code: Exit, says: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run([*words]) == code
    assert says in capfd.readouterr().err
    assert not (tmp_path / "runs").exists()


def test_the_budget_is_that_of_all_attempts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUNNER_BUDGET", "2.5")
    assert run([*SLURM, "--attempts", "3", *PROGRAM]) == Exit.REFUSED
    assert run([*SLURM, "--attempts", "3", "--gpu-hours", "2.5", *PROGRAM]) == Exit.GOOD


def test_all_attempts_are_made_and_the_first_is_submitted(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run([*SLURM, "--attempts", "3", "--gpu-hours", "2.5", *PROGRAM]) == Exit.GOOD
    chain = find_sweep("exp")
    assert chain is not None
    runs = [Run(next((chain.path / "launches" / str(number)).iterdir())) for number in (1, 2, 3)]
    assert set((tmp_path / "submitted").read_text().splitlines()) == {str(runs[0].path)}
    plans = [each.needed_plan() for each in runs]
    places = [plan.attempt and (plan.attempt.number, plan.attempt.most, plan.attempt.most_s) for plan in plans]
    assert places == [(number, 3, 9000) for number in (1, 2, 3)]
    assert [each.job_name for each in plans] == ["exp.1", "exp.2", "exp.3"]
    assert {(each.path / "checkpoints").resolve() for each in runs} == {chain.path / "checkpoints"}
    assert [each.path for each in chain.submitted] == [runs[0].path]
    capfd.readouterr()
    for number in ("8\n", ""):  # of one that is queued, and then taken back
        (runs[1].path / "job.id").write_text(number)
        assert run(["status", "--json"]) == Exit.GOOD
        listed = result(capfd.readouterr().out)
        expected = [("7", {"attempt": "1"}), ("8", {"attempt": "2"})] if number else [("7", {"attempt": "1"})]
        assert sorted((each["job"], each["values"]) for each in listed["runs"]) == expected
        assert listed["refused"] == 0
