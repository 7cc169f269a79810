"""What chain.sh decides from what attempts have left, by real bash; Slurm's programs are stand-ins."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support.shell_files import bash, library, stand_in

RUNNING = "JobState=RUNNING PreemptEligibleTime=2026-11-27T10:00:00 PreemptTime=None"
BEGINS = "runner_begin_attempt 3 5"


@pytest.fixture
def chain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """It is the third attempt's turn, and the fourth is queued."""
    chain = tmp_path / "my chain"
    for number in (1, 2, 3, 4):
        (chain / f"launches/{number}/run/logs").mkdir(parents=True)
    library(chain / "launches/3/run")
    (chain / "checkpoints").mkdir()
    for name, at_s in {"launches/1/run/began": 1000, "launches/2/run/began": 2000, "checkpoints/state": 2050}.items():
        (chain / name).touch()
        os.utime(chain / name, (at_s, at_s))
    (chain / "launches/4/run/job.id").write_text("8\n")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    stand_in(tmp_path, "scancel", f'echo "$*" >"{chain}/scancel"')
    stand_in(tmp_path, "sbatch", f'(pwd; echo "$*"; env | grep -E "^(SLURM|SBATCH)") >"{chain}/sbatch"; echo 9')
    return chain


def said(chain: Path, code: str) -> str:
    done = bash(chain / "launches/3/run", f"runner_run=$PWD SLURM_JOB_ID=7; . lib/chain.sh\n{code}")
    return done.stdout + done.stderr


@pytest.mark.parametrize(
    ("file", "why"),
    [
        ("checkpoints/done", "the program is done"),
        ("launches/2/run/cancelled.json", "attempt 2 was cancelled"),
        ("ended", "some reason"),
    ],
)
def test_an_attempt_leaves_where_the_chain_has_ended(file: str, why: str, chain: Path) -> None:
    (chain / file).write_text("some reason\n")
    assert said(chain, f"{BEGINS}; echo begun") == f"attempt 3 did not begin: {why}\n"
    assert (chain / "ended").read_text() == f"{why}\n"


@pytest.mark.parametrize(("saved_s", "why"), [(1050, ""), (999, "attempts 1 and 2 left no newer checkpoint")])
def test_an_attempt_needs_a_newer_checkpoint_of_the_last_two(saved_s: int, why: str, chain: Path) -> None:
    os.utime(chain / "checkpoints/state", (saved_s, saved_s))
    assert said(chain, "runner_why_not 3").strip() == why


def test_the_next_is_queued_once_and_as_from_a_login_shell(chain: Path) -> None:
    (following := chain / "launches/4/run/job.id").unlink()
    assert said(chain, f"export SBATCH_QOS=y SLURM_CONF=/c SLURM_NTASKS=2; {BEGINS}") == ""
    queued = f"{following.parent}\n--parsable --dependency=afterany:7 job.sh\nSLURM_CONF=/c\n"
    assert ((chain / "sbatch").read_text(), following.read_text()) == (queued, "9\n")
    (chain / "sbatch").unlink()
    assert said(chain, BEGINS) == ""  # of a job that was requeued
    assert not (chain / "sbatch").exists()


def test_a_cancel_meanwhile_takes_it_back_and_a_refusal_is_reported(chain: Path) -> None:
    (chain / "launches/4/run/job.id").unlink()
    stand_in(chain.parent, "sbatch", f'echo x >"{chain}/ended"; echo 9')
    said(chain, BEGINS)
    assert ((chain / "scancel").read_text(), (chain / "launches/4/run/job.id").exists()) == ("9\n", False)
    (chain / "ended").unlink()
    stand_in(chain.parent, "sbatch", "echo 'Access denied' >&2; exit 1")
    assert said(chain, f"{BEGINS}; echo goes on") == "goes on\nattempt 4 could not be queued: Access denied\n"


@pytest.mark.parametrize(
    ("code", "notices", "state", "errors", "why"),
    [
        ("runner_exit=0", "", RUNNING, "", "the program is done"),
        ("runner_exit=3", "", RUNNING, "", "the program ended with exit code 3"),
        ("runner_exit=0", "USR1\n", RUNNING, "", ""),
        ("runner_exit=3", "USR1\n", RUNNING, "", ""),
        (":", "", RUNNING, "", ""),  # before its ranks
        ("runner_exit=143", "", "JobState=TIMEOUT", "", ""),
        ("runner_exit=0", "", "JobState=NODE_FAIL", "", ""),
        ("runner_exit=143", "", RUNNING.replace("None", "2026-11-27T10:00:00"), "", ""),
        ("runner_exit=1", "", RUNNING, "srun: error: Node failure on n1\n", ""),
        ("runner_exit=1", "", "", "", ""),  # Slurm does not answer
    ],
)
def test_what_the_end_of_a_program_means(
    code: str, notices: str, state: str, errors: str, why: str, chain: Path
) -> None:
    stand_in(chain.parent, "scontrol", f"echo '{state}'")
    (chain / "launches/3/run/notices").write_text(notices)
    (chain / "launches/3/run/logs/batch.err").write_text(errors)
    assert said(chain, f"{code}; runner_end_attempt 3") == ""
    assert ((chain / "ended").read_text().strip() if why else "") == why
    assert [(chain / name).exists() for name in ("scancel", "launches/4/run/job.id")] == [bool(why), not why]
