"""Logs as people see them: the first failed rank, several ranks, a terminal, following, waiting, detaching."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from runner.core.errors import Exit
from runner.jobs import directory
from runner.jobs.directory import Run
from runner.model.job import Submitted
from runner.model.plan import record_of
from runner.model.verdict import Verdict
from tests.support.commands import Call
from tests.support.documents import result
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


@pytest.fixture
def run(tmp_path: Path) -> Run:
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


def test_a_job_is_followed_to_its_verdict_and_its_failed_rank_is_shown_afterwards(call: Call, tmp_path: Path) -> None:
    words = ("--runs", str(tmp_path), "--follow", "--", sys.executable, "-c", PROGRAM)
    out = call(*SUBMIT, "2", *words, code=Exit.PROGRAM_FAILED).out
    assert "hello from 0\nverdict: failed" in out
    assert "log: logs/rank-1.err: ValueError: planted" in out
    shown = call("logs", "j")
    assert shown.out == "==> rank-1.out\nhello from 1\n==> rank-1.err\nValueError: planted\n"
    assert shown.err.startswith("rank 1 failed first")
    assert "verdict: failed" in call("logs", "-f", "j", "-n", "1", code=Exit.PROGRAM_FAILED).out


def test_the_last_lines_of_several_ranks_begin_with_rank_and_host(call: Call, run: Run) -> None:
    assert call("logs", "--rank", "0,2-3", "-n", "1").out.splitlines() == [
        "[0 n0] two \x1b[2J of rank 0", "[2 n1] two \x1b[2J of rank 2", "[2 n1] ValueError: x",
        "[3 n1] two \x1b[2J of rank 3",
    ]  # fmt: skip
    assert call("logs", "--all", "-n", "1").out.count("of rank") == 4
    assert "==>" in call("logs").out, "of one rank the files are named, not every line"
    assert "there is no rank 4: the run has ranks 0 to 3" in call("logs", "--rank", "4", code=Exit.USAGE).err


def test_control_characters_are_escaped_in_a_terminal(run: Run) -> None:
    (run.logs / "rank-0.out").write_bytes(b"\x1b]0;title\x07\tbad \xff\n 10%\r 50%\r100%\r\n")
    ours, theirs = pty.openpty()
    subprocess.run([sys.executable, "-m", "runner", "logs", "--rank", "0"], stdout=theirs, check=True)
    os.close(theirs)
    assert os.read(ours, 4096) == b"\\x1b]0;title\\x07\tbad \\xff\r\n100%\r\n"
    os.close(ours)


def test_the_reason_of_a_waiting_job_is_shown(call: Call, run: Run, tmp_path: Path) -> None:
    """Two answers of a stand-in for Slurm: pending, then cancelled."""
    (run.path / "verdict.json").unlink()
    for left in (*run.logs.iterdir(), *run.ranks.iterdir()):
        left.unlink()
    (tmp_path / "scontrol").write_text(
        f"#!/bin/sh\nstate=PENDING why=Resources\n[ -e {tmp_path}/asked ] && state=CANCELLED why=None\n"
        f"touch {tmp_path}/asked\n"
        f"echo '   JobState='$state' Reason='$why' Dependency=x'; echo '   WorkDir={run.path}'\n"
    )
    (tmp_path / "scontrol").chmod(0o755)
    said = call("logs", "-f", "j", code=Exit.PROGRAM_FAILED)
    assert "pending (Resources: the nodes that it needs are busy)" in said.err
    assert "the job was cancelled" in said.out
    assert "no log: cancelled before it started" in call("logs", "j", code=Exit.USAGE).err


def test_ctrl_c_detaches_and_the_job_continues(call: Call, tmp_path: Path) -> None:
    words = (*SUBMIT, "1", "--runs", str(tmp_path), "--follow", "--", "sh", "-c", "echo begun; sleep 60")
    argv = [sys.executable, "-m", "runner", *words]
    child = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert child.stdout is not None
    assert "begun\n" in iter(child.stdout.readline, "")
    child.send_signal(signal.SIGINT)
    _, said = child.communicate(timeout=30)
    assert child.returncode == Exit.INTERRUPTED
    assert "Detached; job " in said and "logs -f " in said and "interrupted" not in said
    assert result(call("status", "j", "--json").out)["state"] == "running"
    call("cancel", "j")
    assert "the job was cancelled" in call("logs", "-f", "j", code=Exit.PROGRAM_FAILED).out
