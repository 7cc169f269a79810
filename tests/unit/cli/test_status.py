"""``status`` and ``logs`` over real jobs of this machine; the list of runs in a pipe, in 80 columns and in 40; logs of
several ranks, in a terminal, followed, detached.
"""

from __future__ import annotations

import os
import pty
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import msgspec
import pytest

from runner.backends.schedulers.local.client import Local
from runner.cli import run as runner
from runner.cli.status import run_lines
from runner.core import files
from runner.core.errors import Exit
from runner.jobs import creation
from runner.jobs.directory import SCRIPT, Run
from runner.jobs.states import cancel_run
from runner.model.figure import Figure
from runner.model.job import Cancelled, ExitMarker, JobState, Submitted
from runner.model.output import ListedRun
from runner.model.plan import record_of
from runner.model.verdict import Verdict
from tests.support.commands import Call
from tests.support.documents import result
from tests.support.evidence import start as rank_start
from tests.support.plans import PLAN
from tests.support.shell_files import stand_in
from tests.support.terminals import Terminal
from tests.support.users import ALICE, AS_ROOT

Start = Callable[[str], Run]


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    """Starts a job of this machine with that script; what still runs at the end is cancelled."""
    runs = []

    def started(body: str) -> Run:
        run = creation.create(tmp_path / "runs", "train-4", time.time())
        runs.append(run)
        run.write("plan.json", PLAN)
        files.write_private(run.path / SCRIPT, f"#!/bin/bash\n{body}\n")
        job = Local().submit(run.path, SCRIPT)
        run.write("job.json", Submitted("local", job, "", "0", time.time()))
        return run

    yield started
    for run in runs:
        cancel_run(run)


def test_a_running_job_shows_its_last_output_and_what_to_do_next(start: Start, call: Call, tmp_path: Path) -> None:
    run = start(f"until [ -e '{tmp_path}/go' ]; do sleep 0.05; done; echo step 7; exec sleep 60")
    assert "no log yet: running, tasks started 0/4" in call("logs", run.run_id, code=Exit.USAGE).err
    assert "\n  no output yet\n" in call("status", run.run_id).out
    (tmp_path / "go").touch()
    while not (run.logs / "batch.out").stat().st_size:
        time.sleep(0.05)
    first, last_output, *_, then = call("status", "train").out.splitlines()
    assert first.startswith(f"run {run.run_id}, job ")
    assert first.endswith(": running, tasks started 0/4, ended 0/4")
    assert last_output.startswith("  last output ") and last_output.endswith(" s ago (logs/batch.out): step 7")
    assert then.endswith(f" logs --follow {run.run_id}")


def test_a_job_that_ended_unnoticed_is_judged(start: Start, call: Call) -> None:
    run = start("exit 0")
    submitted = run.read("job.json", Submitted)
    assert submitted is not None
    run.write("exit.json", ExitMarker(submitted.job_id, 3, 1.0))
    shown = call("status", run.run_id).out
    assert shown.startswith(f"run {run.run_id}\nverdict: failed\n")
    assert "wait" not in shown
    assert run.read("verdict.json", Verdict) is not None
    assert "the job ended with exit code 3" in call("wait", run.run_id, "--json", code=Exit.PROGRAM_FAILED).out


def test_a_job_that_was_cancelled_before_it_started_has_no_log(start: Start, call: Call) -> None:
    run = start("exec sleep 60")
    cancel_run(run)
    run.write("ended.json", JobState("ended", "CANCELLED"))
    assert "error: no log: cancelled before it started\n" in call("logs", run.run_id, code=Exit.USAGE).err
    assert "verdict: cancelled\n  ! the job was cancelled by " in call("status", run.run_id).out
    assert runner(["wait", run.run_id]) == Exit.PROGRAM_FAILED


def test_of_a_job_that_its_scheduler_does_not_know_no_end_is_reported(call: Call, tmp_path: Path) -> None:
    for name, body in (("squeue", ""), ("sacct", ""), ("scontrol", "echo Invalid job id specified >&2; exit 1")):
        stand_in(tmp_path, name, body)
    run = creation.create(tmp_path / "runs", "train-4", time.time())
    run.write("plan.json", PLAN)
    files.write_private(run.path / SCRIPT, "#!/bin/bash\n")
    run.write("job.json", Submitted("slurm", "7", str(tmp_path), "0", time.time()))
    assert call("cancel", run.run_id).out.startswith(
        "job 7 has ended, or its scheduler does not know it as this run's; "
    )
    run.write("exit.json", ExitMarker("7", 0, time.time()))
    assert call("cancel", run.run_id).out.startswith("job 7 has already ended; ")


@AS_ROOT
def test_the_job_of_another_users_run_directory_is_not_cancelled(start: Start, call: Call) -> None:
    run = start("exec sleep 60")
    job = run.read("job.json", Submitted)
    assert job is not None
    os.chown(run.path, ALICE, ALICE)
    for verb in ("cancel", "shell"):
        assert "only its owner acts on its job" in call(verb, str(run.path), code=Exit.REFUSED).err
    os.chown(run.path, 0, 0)
    assert not (run.path / "cancelled.json").exists()
    assert Local().state(job.job_id, run.path).phase == "running"


def test_what_another_user_called_a_run_reaches_no_terminal_raw(start: Start, call: Call, tmp_path: Path) -> None:
    run = start("exec sleep 60")
    copy = shutil.copytree(run.path, tmp_path / "x\x1b]0;planted\x07\u202e")
    said = call("status", str(copy))
    assert "x\\x1b]0;planted\\x07\\u202e" in said.out and said.out.isascii() and "\x1b" not in said.out


def test_the_list_of_runs_and_a_refused_submission_which_is_none(start: Start, call: Call) -> None:
    assert call("status").out == "no runs yet; start one with `gpu-runner submit`\n"
    run = start("exec sleep 60")
    refused = creation.create(run.path.parent, "refused-4", time.time() + 1)
    refused.write("plan.json", PLAN)
    files.write_private(refused.path / SCRIPT, "#!/bin/bash\n")
    refused.write("job.json", Submitted("slurm", "", "", "0", time.time(), refused="no such partition"))
    said = call("status")
    one, listing = (result(call("status", *words, "--json").out) for words in ((run.run_id,), ("--last", "1")))
    (listed,) = listing["runs"]
    assert (listing["more"], listing["refused"]) == (False, 1)
    assert (listed["run"], listed["state"], listed["outcome"], listed["gpus"]) == (run.run_id, "running", None, 4)
    same = ("run", "directory", "job", "state", "gpus", "site", "submitted")
    assert [listed[key] for key in same] == [one[key] for key in same]
    head, row = (line.split() for line in said.out.splitlines())
    assert head == ["RUN", "NAME", "JOB", "STATE", "GPUS", "SITE", "AGE", "RESULT"]
    assert row[:6] == [run.run_id, "train", listed["job"].partition(".")[0], "running", "4", "s"]
    assert row[7:] == ["s", "-"]
    assert "1 submission was refused, and no run: gpu-runner status --state not-submitted" in said.err
    assert refused.run_id in call("status", "--state", "not-submitted").out
    assert call("status", "--state", "cancelled").out.startswith("no run is of that selection; all: ")
    for words in (["status"], ["wait"], ["cancel"], ["logs"]):
        said = call(*words, refused.run_id, code=Exit.NOT_ACCEPTED)
        assert "error: no such partition\n" in said.err
        assert "never submitted; fix the cause above and submit again" in said.err
    assert f"wait {run.run_id}" in call("cancel").out, "the newest that is a run"


WATCH = [sys.executable, "-m", "runner", "status", "--watch"]


def test_a_list_that_is_watched_shows_every_change(start: Start) -> None:
    """In a pipe; Ctrl-C is how it ends."""
    first = start("exec sleep 60")
    with subprocess.Popen(WATCH, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        shown = [child.stdout.readline() for _ in range(2)]
        second = start("exec sleep 60")
        shown += [child.stdout.readline() for _ in range(3)]
        child.send_signal(signal.SIGINT)
        rest = child.communicate(timeout=30)
    assert [line.split()[0] for line in shown] == ["RUN", first.run_id, "RUN", second.run_id, first.run_id]
    assert (rest, child.returncode) == (("", ""), 0)


def test_a_list_that_is_watched_fits_into_its_terminal(start: Start) -> None:
    run = start("exec sleep 60")
    terminal = Terminal(WATCH, {**os.environ, "TERM": "xterm", "COLUMNS": "40"}, Path.cwd())
    terminal.until("every 5 s")
    terminal.type("\x03")  # Ctrl-C
    assert terminal.end() == 0
    lines = [re.sub(r"\x1b\[[?0-9;]*[a-zA-Z]", "", line).strip() for line in terminal.seen.splitlines()]
    assert f"{run.run_id}     4  running" in lines


NOW = datetime(2026, 11, 22, 9, 0, 0, tzinfo=timezone.utc)


def row(name: str, *, ago_s: int = 60, **changes: Any) -> ListedRun:
    fields: dict[str, Any] = {
        "run": f"20261122-085900-{name}-16", "directory": "/r", "name": name, "job": "4711", "state": "ended",
        "reason": "", "gpus": 16, "site": "technion", "submitted": NOW - timedelta(seconds=ago_s),
        "outcome": "ran",
    }  # fmt: skip
    return ListedRun(**(fields | changes))


RUNS = (
    row("bert", ago_s=12, state="running", outcome=None, job="12.pbs-server"),
    row("resnet50", ago_s=600, outcome="measured", figure=Figure(5321.07, "images")),
    row("probe", ago_s=7200, outcome="measured", figure=Figure(10.0, "images").labelled("CPU"), job="", gpus=2),
    row("old", ago_s=86_400 * 3, outcome="failed", submitted=None),
)


WAITING = (
    row("bert", state="pending", reason="Resources", outcome=None),
    row("x", state="pending", reason="Not Running: Insufficient amount of resource: ngpus", outcome=None),
)


@pytest.mark.parametrize(
    ("runs", "width", "lines"),
    [
        pytest.param(RUNS, None, [
            "RUN                          NAME      JOB   STATE    GPUS  SITE         AGE  RESULT",
            "20261122-085900-bert-16      bert      12    running    16  technion    12 s  -",
            "20261122-085900-resnet50-16  resnet50  4711  ended      16  technion  10 min  5321 images/s",
            "20261122-085900-probe-16     probe     -     ended       2  technion     2 h  10.0 images/s (demo)",
            "20261122-085900-old-16       old       4711  ended      16  technion       -  failed",
        ], id="a pipe gets every column"),
        pytest.param(WAITING, None, [
            "RUN                      NAME  JOB   STATE    GPUS  SITE        AGE  RESULT",
            "20261122-085900-bert-16  bert  4711  pending    16  technion  1 min  (Resources)",
            "20261122-085900-x-16     x     4711  pending    16  technion  1 min  (Insufficient amount of resour...)",
        ], id="why a job waits"),
        pytest.param((RUNS[0], row("resnet50")), 80, [
            "RUN                          JOB   STATE    GPUS  SITE        AGE  RESULT",
        ], id="80 columns do without the name"),
        pytest.param(RUNS[:2], 80, [
            "RUN                          JOB   GPUS  SITE         AGE  RESULT",
            "20261122-085900-bert-16      12      16  technion    12 s  running",
            "20261122-085900-resnet50-16  4711    16  technion  10 min  5321 images/s",
        ], id="a result stands for the state"),
        pytest.param(RUNS, 40, [
            "20261122-085900-bert-16",
            "  running  16 GPUs  12 s  technion",
            "20261122-085900-resnet50-16",
            "  5321 images/s  16 GPUs  10 min",
            "20261122-085900-probe-16",
            "  10.0 images/s (demo)  2 GPUs  2 h",
            "20261122-085900-old-16",
            "  failed  16 GPUs  -  technion  job 4711",
        ], id="40 columns hold a run in two lines"),
        pytest.param(WAITING[:1], 40, [
            "20261122-085900-bert-16", "  pending (Resources)  16 GPUs  1 min",
        ], id="why, in two lines"),
    ],
)  # fmt: skip
def test_the_list_fits_its_terminal(runs: tuple[ListedRun, ...], width: int | None, lines: list[str]) -> None:
    assert run_lines(runs, NOW, width)[: len(lines)] == lines


@pytest.mark.parametrize("width", [30, 45, 60, 75, 90, None])
def test_no_line_is_wider_than_the_terminal_but_for_ids_and_none_holds_a_control_character(width: int | None) -> None:
    made = run_lines((*RUNS, row("x\x1b[2J\ny")), NOW, width)
    assert all(line.isprintable() and len(line) <= (width or 999) for line in made), made
    long = row("a-name-as-long-as-names-can-be-64-characters-of-it")
    assert any(long.run in line for line in run_lines((long,), NOW, width))


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
    made = creation.create(tmp_path / "runs", "j-4", 0.0)
    made.write("plan.json", record_of(PLAN, ()))
    made.write("job.json", Submitted("slurm", "5", str(tmp_path), "", 0.0))
    (made.path / "job.sh").touch()
    for rank in range(4):
        (made.logs / f"rank-{rank}.out").write_bytes(b"one\ntwo \x1b[2J of rank %d\n" % rank)
        made.write(f"ranks/{rank}.start.json", rank_start(rank))
    (made.logs / "rank-2.err").write_text("ValueError: x\n")
    made.write("verdict.json", Verdict(outcome="failed", rank=2, log="logs/rank-2.err: ValueError: x"))
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


def test_the_names_of_logs_are_printed_escaped(call: Call, run: Run) -> None:
    """They may be another user's."""
    for log in run.logs.iterdir():
        log.rename(log.with_name(f"x\x1b[2J{log.name}"))
    assert "[x\\x1b[2Jrank-2.err] ValueError: x\n" in call("logs", "--all").out
    assert "==> x\\x1b[2Jrank-2.err\nValueError: x\n" in call("logs").out


def test_control_characters_are_escaped_in_a_terminal(run: Run) -> None:
    (run.logs / "rank-0.out").write_bytes(
        b"\x1b]0;title\x07\tbad \xff\n 10%\r 50%\r100%\r\n"
        b"\x1b[8mno \x1b[01;31mred\nepoch\n\rstep 1\x1b[A\n\rstep 2\x1b[A\n"
    )
    ours, theirs = pty.openpty()
    subprocess.run([sys.executable, "-m", "runner", "logs", "--rank", "0"], stdout=theirs, check=True)
    os.close(theirs)
    assert os.read(ours, 4096) == (
        b"\\x1b]0;title\\x07\tbad \\xff\r\n\r\x1b[K100%\r\n\\x1b[8mno \x1b[01;31mred\x1b[0m\r\n\r\x1b[Kstep 2\r\n"
    )
    os.close(ours)


def test_the_reason_of_a_waiting_job_is_shown(call: Call, run: Run, tmp_path: Path) -> None:
    """Two answers of a stand-in for Slurm: pending, then cancelled. The record of who cancels it is there between them:
    else the second one comes half a minute later.
    """
    (run.path / "verdict.json").unlink()
    for left in (*run.logs.iterdir(), *run.ranks.iterdir()):
        left.unlink()
    (tmp_path / "scontrol").write_text(
        f"#!/bin/sh\nstate=PENDING why=Resources\n[ -e {tmp_path}/asked ] && state=CANCELLED why=None\n"
        f"touch {tmp_path}/asked; mv {tmp_path}/request {run.path}/cancelled.json 2>/dev/null\n"
        f"echo '   JobState='$state' Reason='$why' Dependency=x'; echo '   WorkDir={run.path}'\n"
    )
    (tmp_path / "scontrol").chmod(0o755)
    (tmp_path / "request").write_bytes(msgspec.json.encode(Cancelled("ann", "login", time.time())))
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
