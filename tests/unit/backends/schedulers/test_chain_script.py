"""What chain.sh decides from what attempts have left, by real bash; Slurm's programs are stand-ins."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support.shell_files import bash, library, stand_in

SOURCED = "runner_run=$PWD SLURM_JOB_ID=7; . lib/chain.sh; "
RUNNING = "JobState=RUNNING Reason=None PreemptEligibleTime=2026-11-27T10:00:00 PreemptTime=None"


def attempt(root: Path, number: int, began_s: int = 0) -> Path:
    run = root / "my chain" / "launches" / str(number) / "run"
    (run / "logs").mkdir(parents=True)
    if began_s:
        (run / "began").touch()
        os.utime(run / "began", (began_s, began_s))
    return run


@pytest.fixture
def third(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The third attempt, whose turn it is; the first took 100 s, the second left no record of its end."""
    ended = attempt(tmp_path, 1, 1000) / "exit.json"
    ended.touch()
    os.utime(ended, (1100, 1100))
    attempt(tmp_path, 2, 2000)
    chain = tmp_path / "my chain"
    (chain / "checkpoints").mkdir()
    saved(chain, 2050)
    clients = tmp_path / "clients"
    clients.mkdir()
    monkeypatch.setenv("PATH", f"{clients}:{os.environ['PATH']}")
    for program in ("scancel", "sbatch"):
        stand_in(clients, program, f'env >"{chain}/{program}.env"; echo "$PWD $*" >>"{chain}/{program}"; echo 8')
    stand_in(clients, "scontrol", f"echo '{RUNNING}'")
    attempt(tmp_path, 4)
    return library(attempt(tmp_path, 3))


def saved(chain: Path, at_s: int) -> None:
    (chain / "checkpoints/state").touch()
    os.utime(chain / "checkpoints/state", (at_s, at_s))


STOPS = {
    "it was cancelled": "stop.json",
    "the program is done": "checkpoints/done",
    "attempt 2 was cancelled": "launches/2/run/cancelled.json",
    "some reason": "ended",
}


@pytest.mark.parametrize("reason", STOPS)
def test_an_attempt_does_not_begin_where_the_chain_has_ended(reason: str, third: Path) -> None:
    chain = third.parents[2]
    (chain / STOPS[reason]).write_text("some reason\n")
    (third / "job.id").write_text("7\n")
    done = bash(third, f"{SOURCED} runner_begin_attempt 3 5 60 0; echo begun")
    assert (done.stdout, done.stderr) == (f"attempt 3 did not begin: {reason}\n", "")
    assert (chain / "ended").read_text() == f"{reason}\n"
    assert not (chain / "sbatch").exists()
    assert not (third / "job.id").exists()


@pytest.mark.parametrize(
    ("at_s", "arguments", "reason"),
    [
        (1050, "60 0", ""),  # of the first: only the second made none
        (999, "60 0", "attempts 1 and 2 left no newer checkpoint"),
        (2050, "600 1300", ""),  # 100 s, and 600 for what left no record
        (2050, "600 1299", "--gpu-hours leaves no time for attempt 3"),
    ],
)
def test_an_attempt_begins_only_with_progress_and_time_left(
    at_s: int, arguments: str, reason: str, third: Path
) -> None:
    saved(third.parents[2], at_s)
    done = bash(third, f"{SOURCED} runner_why_not 3 5 {arguments}")
    assert (done.stdout.strip(), done.stderr) == (reason, "")


def test_the_next_is_queued_from_its_directory_as_from_a_login_shell(third: Path) -> None:
    chain = third.parents[2]
    env = {**os.environ, "SLURM_CONF": "/etc/s.conf", "SLURM_NTASKS": "2", "SBATCH_ACCOUNT": "x"}
    done = bash(third, f"export SBATCH_QOS=y; {SOURCED} for _ in 1 2; do runner_begin_attempt 3 5 60 0; done", env)
    assert (done.stdout, done.stderr) == ("", "")
    words = "--parsable --dependency=afterany:7 job.sh"
    assert (chain / "sbatch").read_text() == f"{chain}/launches/4/run {words}\n"  # once, also where it was requeued
    given = [line for line in (chain / "sbatch.env").read_text().splitlines() if line.startswith(("SLURM", "SBATCH"))]
    assert given == ["SLURM_CONF=/etc/s.conf"]
    assert (chain / "launches/4/run/job.id").read_text() == "8\n"


def test_a_cancel_meanwhile_takes_the_next_back(third: Path) -> None:
    chain = third.parents[2]
    stand_in(chain.parent / "clients", "sbatch", f'touch "{chain}/stop.json"; echo 8')
    bash(third, f"{SOURCED} runner_begin_attempt 3 5 60 0")
    assert (chain / "scancel").read_text().endswith(" 8\n")
    assert not (chain / "launches/4/run/job.id").exists()


def test_the_job_goes_on_where_the_next_cannot_be_queued(third: Path) -> None:
    stand_in(third.parents[2].parent / "clients", "sbatch", "echo 'Access denied' >&2; exit 1")
    done = bash(third, f"{SOURCED} runner_begin_attempt 3 5 60 0; echo goes on")
    assert (done.stdout, done.stderr) == ("goes on\n", "attempt 4 could not be queued: Access denied\n")


@pytest.mark.parametrize(
    ("code", "notices", "state", "errors", "reason"),
    [
        ("0", "", RUNNING, "", "the program is done"),
        ("3", "", RUNNING, "", "the program ended with exit code 3"),
        ("0", "USR1\n", RUNNING, "", ""),  # it left because it was warned
        ("3", "USR1\n", RUNNING, "", ""),
        ("", "", RUNNING, "", ""),  # before the program began
        ("143", "", "JobState=TIMEOUT", "", ""),
        ("0", "", "JobState=NODE_FAIL", "", ""),
        ("143", "", RUNNING.replace("=None", "=2026-11-27T10:00:00"), "", ""),  # preempted, with time to leave
        ("1", "", RUNNING, "srun: error: Node failure on n1\n", ""),
        ("1", "", "", "", ""),  # Slurm does not answer
    ],
)
def test_what_the_end_of_a_program_means(
    code: str, notices: str, state: str, errors: str, reason: str, third: Path
) -> None:
    chain = third.parents[2]
    stand_in(chain.parent / "clients", "scontrol", f"echo '{state}'")
    (third / "notices").write_text(notices)
    (third / "logs/batch.err").write_text(errors)
    (chain / "launches/4/run/job.id").write_text("8\n")
    done = bash(third, f"{SOURCED} {f'runner_exit={code}; ' if code else ''}runner_end_attempt 3")
    assert (done.stdout, done.stderr) == ("8\n" if reason else "", "")  # of scancel
    assert ((chain / "ended").read_text().strip() if reason else "") == reason
    assert (chain / "scancel").exists() == (not (chain / "launches/4/run/job.id").exists()) == bool(reason)
