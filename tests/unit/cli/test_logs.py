"""Logs as people see them: the first failed rank, several ranks, a terminal, following, waiting, detaching."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from runner.jobs import directory
from runner.jobs.directory import Run
from runner.model.job import Submitted
from runner.model.plan import record_of
from runner.model.verdict import Verdict
from tests.support.evidence import start
from tests.support.plans import PLAN

PROGRAM = """
import os, sys, time
rank = int(os.environ["RANK"])
print("hello from", rank, flush=True)
time.sleep(0.3 + 20 * (rank != 1))
sys.exit("ValueError: planted")
"""
SUBMIT = ("submit", "--site", "local", "--runtime", "native", "--name", "j", "--gpus")

Command = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Command:
    """The real command line, with a list of runs of its own."""
    monkeypatch.setenv("RUNNER_CONFIG", str(tmp_path / "config.yaml"))

    def call(*words: str, stdout: int = subprocess.PIPE) -> subprocess.CompletedProcess[str]:
        argv = [sys.executable, "-m", "runner", *words]
        return subprocess.run(argv, stdout=stdout, stderr=subprocess.PIPE, text=True, check=False, timeout=60)

    return call


@pytest.fixture
def run(command: Command, tmp_path: Path) -> Run:
    """A run of four ranks of which rank 2 failed first."""
    made = directory.create(tmp_path / "runs", "j-4", 0.0)
    made.write("plan.json", record_of(PLAN, ()))
    made.write("verdict.json", Verdict(outcome="failed", rank=2, log="logs/rank-2.err: ValueError: x"))
    made.write("job.json", Submitted("slurm", "5", str(tmp_path), "", 0.0))
    (made.path / "job.sh").touch()
    for rank in range(4):
        (made.logs / f"rank-{rank}.out").write_bytes(b"one\ntwo \x1b[2J of rank %d\n" % rank)
        made.write(f"ranks/{rank}.start.json", start(rank))
    (made.logs / "rank-2.err").write_text("ValueError: x\n")
    return made


def test_a_job_is_followed_to_its_verdict_and_its_failed_rank_is_shown_afterwards(
    command: Command, tmp_path: Path
) -> None:
    done = command(*SUBMIT, "2", "--runs", str(tmp_path), "--follow", "--", sys.executable, "-c", PROGRAM)
    assert done.returncode == 5, done
    assert "hello from 0\nverdict: failed" in done.stdout
    assert "log: logs/rank-1.err: ValueError: planted" in done.stdout
    shown = command("logs", "j")
    assert shown.stdout == "==> rank-1.out\nhello from 1\n==> rank-1.err\nValueError: planted\n"
    assert shown.stderr.startswith("rank 1 failed first")
    again = command("logs", "-f", "j", "-n", "1")
    assert (again.returncode, "verdict: failed" in again.stdout) == (5, True)


def test_the_last_lines_of_several_ranks_begin_with_rank_and_host(command: Command, run: Run) -> None:
    done = command("logs", "--rank", "0,2-3", "-n", "1")
    assert done.stdout.splitlines() == [
        "[0 n0] two \x1b[2J of rank 0",
        "[2 n1] two \x1b[2J of rank 2",
        "[2 n1] ValueError: x",
        "[3 n1] two \x1b[2J of rank 3",
    ]
    assert command("logs", "--all", "-n", "1").stdout.count("of rank") == 4
    assert "==>" in command("logs").stdout, "of one rank the files are named, not every line"
    assert "there is no rank 4: the run has ranks 0 to 3" in command("logs", "--rank", "4").stderr


def test_control_characters_are_escaped_in_a_terminal(command: Command, run: Run) -> None:
    (run.logs / "rank-0.out").write_bytes(b"\x1b]0;title\x07\tbad \xff\n 10%\r 50%\r100%\r\n")
    ours, theirs = pty.openpty()
    command("logs", "--rank", "0", stdout=theirs)
    os.close(theirs)
    assert os.read(ours, 4096) == b"\\x1b]0;title\\x07\tbad \\xff\r\n100%\r\n"
    os.close(ours)


def test_the_reason_of_a_waiting_job_is_shown(command: Command, run: Run, tmp_path: Path) -> None:
    """Two answers of a stand-in for Slurm: pending, then cancelled."""
    (run.path / "verdict.json").unlink()
    for left in (*run.logs.iterdir(), *run.ranks.iterdir()):
        left.unlink()
    answer = f"echo '   JobState='$state' Reason='$why' Dependency=x'; echo '   WorkDir={run.path}'"
    (tmp_path / "scontrol").write_text(
        f"#!/bin/sh\nstate=PENDING why=Resources\n[ -e {tmp_path}/asked ] && state=CANCELLED why=None\n"
        f"touch {tmp_path}/asked\n{answer}\n"
    )
    (tmp_path / "scontrol").chmod(0o755)
    done = command("logs", "-f", "j")
    assert "pending (Resources: the nodes that it needs are busy)" in done.stderr
    assert "the job was cancelled" in done.stdout
    assert done.returncode == 5
    assert "no log: cancelled before it started" in command("logs", "j").stderr


def test_ctrl_c_detaches_and_the_job_continues(command: Command, tmp_path: Path) -> None:
    words = (*SUBMIT, "1", "--runs", str(tmp_path), "--follow", "--", "sh", "-c", "echo begun; sleep 60")
    argv = [sys.executable, "-m", "runner", *words]
    child = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert child.stdout is not None
    assert "begun\n" in iter(child.stdout.readline, "")
    child.send_signal(signal.SIGINT)
    _, said = child.communicate(timeout=30)
    assert child.returncode == 130
    assert "Detached; job " in said and "logs -f " in said and "interrupted" not in said
    assert '"running"' in command("status", "j", "--json").stdout
    assert command("cancel", "j").returncode == 0
    assert "the job was cancelled" in command("logs", "-f", "j").stdout
