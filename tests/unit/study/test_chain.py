"""Chains: where there is none, what each attempt gets, and how one that is not queued looks to other commands."""

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
CHAIN = (*OF, "--site", "technion", "--force", "runtime-not-at-site", "--until-done", "--attempts", "3")


@pytest.fixture(autouse=True)
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("sbatch", "scontrol", "squeue", "sacct", "scancel", "srun", "sinfo"):
        stand_in(tmp_path, name, "pwd >>../submitted; echo 7" if name == "sbatch" else "true")
    monkeypatch.setenv("PATH", f"{tmp_path}:{Path(sys.executable).parent}:{os.environ['PATH']}")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "t.py").touch()


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        ((*OF, "--site", "local", "--until-done"), Exit.REFUSED, "cannot queue the next"),
        ((*CHAIN, "--gpu-hours", "0.5"), Exit.USAGE, "one attempt may take 1.00 GPU-hours"),
        ((*CHAIN, "--sweep", "a=1"), Exit.USAGE, "neither a sweep nor --write"),
        ((*CHAIN, "--write", "x"), Exit.USAGE, "neither a sweep nor --write"),
        ((*OF, "--attempts", "3"), Exit.USAGE, "they are of attempts at one job"),
        (CHAIN, Exit.REFUSED, "3.00 GPU-hours by its time limit, and RUNNER_BUDGET leaves 2.50"),
    ],
)
def test_what_can_be_no_chain_is_refused(
    words: tuple[str, ...], code: Exit, says: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RUNNER_BUDGET", "2.5")
    assert run([*words, "--", "python3", "t.py"]) == code
    assert says in capfd.readouterr().err
    assert not Path("runs").exists()


def test_all_attempts_are_made_and_the_first_is_submitted(capfd: pytest.CaptureFixture[str]) -> None:
    assert run([*CHAIN, "--gpu-hours", "2.5", "--", "python3", "t.py"]) == Exit.GOOD
    chain = find_sweep("exp")
    assert chain is not None
    runs = [Run(next(chain.launches(number).iterdir())) for number in chain.sweep.runs]
    plans = [each.needed_plan() for each in runs]
    assert [(each.attempt, each.attempts, each.job_name) for each in plans] == [(n, 2, f"exp.{n}") for n in (1, 2)]
    assert [dict(each.env)["RUNNER_CHECKPOINT_DIR"] for each in plans] == [str(chain.path / "checkpoints")] * 2
    assert [each.path for each in chain.submitted] == [runs[0].path]
    for job in ("8", ""):  # of the second, which is queued, and then taken back
        capfd.readouterr()
        (runs[1].path / "job.id").write_text(job)
        assert run(["status", "--json"]) == Exit.GOOD
        listed = result(capfd.readouterr().out)
        assert sorted(each["job"] for each in listed["runs"]) == ["7", *filter(None, [job])]
        assert listed["refused"] == 0
