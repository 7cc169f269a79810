"""``status RUN`` and ``logs`` over real jobs of this machine: while one runs, and when it has ended unnoticed."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from runner.backends.schedulers.local.client import Local
from runner.cli import run as runner
from runner.core import files
from runner.core.errors import Exit
from runner.jobs import directory
from runner.jobs.directory import SCRIPT, Run
from runner.jobs.states import cancel_run
from runner.model.job import ExitMarker, JobState, Submitted
from runner.model.verdict import Verdict
from tests.support.documents import result
from tests.support.plans import PLAN
from tests.support.users import ALICE

Start = Callable[[str], Run]


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    """Starts a job of this machine with that script; what still runs at the end is cancelled."""
    monkeypatch.setenv("RUNNER_STATE", str(tmp_path / "state"))
    runs = []

    def started(body: str) -> Run:
        run = directory.create(tmp_path / "runs", "train-4", time.time())
        runs.append(run)
        run.write("plan.json", PLAN)
        files.write_private(run.path / SCRIPT, f"#!/bin/bash\n{body}\n")
        job = Local().submit(run.path, SCRIPT)
        run.write("job.json", Submitted("local", job, "", "0", time.time()))
        return run

    yield started
    for run in runs:
        cancel_run(run)


def test_a_running_job_shows_its_last_output_and_what_to_do_next(
    start: Start, capsys: pytest.CaptureFixture[str]
) -> None:
    run = start("echo step 7; exec sleep 60")
    while not (run.logs / "batch.out").stat().st_size:
        time.sleep(0.05)
    assert runner(["status", "train"]) == Exit.GOOD
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"run {run.run_id}, job ")
    assert lines[0].endswith(": running, ranks started 0/4, ended 0/4")
    assert lines[1].startswith("  last output ")
    assert lines[1].endswith(" s ago (logs/batch.out): step 7")
    assert lines[-1].endswith(f" logs --follow {run.run_id}")


def test_a_job_that_ended_unnoticed_is_judged(start: Start, capsys: pytest.CaptureFixture[str]) -> None:
    run = start("exit 0")
    submitted = run.read("job.json", Submitted)
    assert submitted is not None
    run.write("exit.json", ExitMarker(submitted.job_id, 3, 1.0))
    assert runner(["status", run.run_id]) == Exit.GOOD
    shown = capsys.readouterr().out
    assert shown.startswith(f"run {run.run_id}\nverdict: failed\n")
    assert "wait" not in shown
    assert run.read("verdict.json", Verdict) is not None
    assert runner(["wait", run.run_id, "--json"]) == Exit.PROGRAM_FAILED
    assert "the job ended with exit code 3" in capsys.readouterr().out


def test_a_job_that_was_cancelled_before_it_started_has_no_log(
    start: Start, capsys: pytest.CaptureFixture[str]
) -> None:
    run = start("exec sleep 60")
    cancel_run(run)
    run.write("ended.json", JobState("ended", "CANCELLED"))
    assert runner(["logs", run.run_id]) == Exit.USAGE
    assert "error: no log: cancelled before it started\n" in capsys.readouterr().err
    assert runner(["status", run.run_id]) == Exit.GOOD
    assert "verdict: cancelled\n  ! the job was cancelled by " in capsys.readouterr().out
    assert runner(["wait", run.run_id]) == Exit.PROGRAM_FAILED


@pytest.mark.skipif(os.geteuid() != 0, reason="takes two users")
def test_the_job_of_another_users_run_directory_is_not_cancelled(
    start: Start, capsys: pytest.CaptureFixture[str]
) -> None:
    run = start("exec sleep 60")
    job = run.read("job.json", Submitted)
    assert job is not None
    os.chown(run.path, ALICE, ALICE)
    assert runner(["cancel", str(run.path)]) == Exit.REFUSED
    assert "only its owner cancels its job" in capsys.readouterr().err
    os.chown(run.path, 0, 0)
    assert not (run.path / "cancelled.json").exists()
    assert Local().state(job.job_id, run.path).phase == "running"


def test_a_job_that_has_written_nothing_yet_says_where_it_stands(
    start: Start, capsys: pytest.CaptureFixture[str]
) -> None:
    run = start("exec sleep 60")
    assert runner(["logs", run.run_id]) == Exit.USAGE
    assert "no log yet: running, ranks started 0/4" in capsys.readouterr().err
    assert runner(["status", run.run_id]) == Exit.GOOD
    assert "\n  no output yet\n" in capsys.readouterr().out


def test_the_list_of_runs(start: Start, capsys: pytest.CaptureFixture[str]) -> None:
    runner(["status"])
    assert capsys.readouterr().out == "no runs yet; start one with `python -m runner submit`\n"
    run = start("exec sleep 60")
    refused = directory.create(run.path.parent, "refused-4", time.time())
    refused.write("plan.json", PLAN)
    files.write_private(refused.path / SCRIPT, "#!/bin/bash\n")
    refused.write("job.json", Submitted("slurm", "", "", "0", time.time(), refused="no such partition"))
    assert runner(["status"]) == Exit.GOOD
    said = capsys.readouterr()
    job = str(run.read("job.json", Submitted)).partition("job_id='")[2].partition(".")[0]
    assert [line.split() for line in said.out.splitlines()] == [
        ["RUN", "NAME", "JOB", "STATE", "GPUS", "SITE", "AGE", "RESULT"],
        [run.run_id, "train", job, "running", "4", "s", *said.out.splitlines()[1].split()[6:8], "-"],
    ]
    assert "1 submission was refused, and no run: python -m runner status --state not-submitted" in said.err
    assert runner(["status", "--state", "not-submitted"]) == Exit.GOOD
    assert refused.run_id in capsys.readouterr().out
    assert runner(["status", "--state", "cancelled"]) == Exit.GOOD
    assert capsys.readouterr().out.startswith("no run is of that selection; all: ")


def test_a_refused_submission_is_read_by_its_id(start: Start, capsys: pytest.CaptureFixture[str]) -> None:
    run = start("exit 0")
    refused = directory.create(run.path.parent, "refused-4", time.time() + 1)
    refused.write("plan.json", PLAN)
    files.write_private(refused.path / SCRIPT, "#!/bin/bash\n")
    refused.write("job.json", Submitted("slurm", "", "", "0", 1.0, refused="no such partition"))
    for words in (["status"], ["wait"], ["cancel"], ["logs"]):
        assert runner([*words, refused.run_id]) == Exit.NOT_ACCEPTED
        said = capsys.readouterr().err
        assert "error: no such partition\n" in said
        assert "never submitted; fix the cause above and submit again" in said
    assert runner(["cancel"]) == Exit.GOOD
    assert f"wait {run.run_id}" in capsys.readouterr().out


def test_a_list_that_is_watched_shows_every_change(start: Start) -> None:
    """In a pipe; Ctrl-C is how it ends."""
    first = start("exec sleep 60")
    command = [sys.executable, "-m", "runner", "status", "--watch"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
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
    master, terminal = os.openpty()
    env = {**os.environ, "TERM": "xterm", "COLUMNS": "40"}
    command = [sys.executable, "-m", "runner", "status", "--watch"]
    with subprocess.Popen(command, stdout=terminal, stderr=terminal, env=env) as child:
        os.close(terminal)
        shown = ""
        while "every 5 s" not in shown:
            shown += os.read(master, 4096).decode()
        child.send_signal(signal.SIGINT)
        assert child.wait(30) == 0
    os.close(master)
    lines = [re.sub(r"\x1b\[[?0-9;]*[a-zA-Z]", "", line).strip() for line in shown.splitlines()]
    assert f"{run.run_id}     4  running" in lines


def test_the_list_as_json(start: Start, capsys: pytest.CaptureFixture[str]) -> None:
    run = start("exec sleep 60")
    assert runner(["status", "--json", "--last", "1"]) == Exit.GOOD
    said = result(capsys.readouterr().out)
    assert (said["more"], said["refused"]) == (False, 0)
    (listed,) = said["runs"]
    assert (listed["run"], listed["state"], listed["outcome"], listed["gpus"]) == (run.run_id, "running", None, 4)
    assert runner(["status", run.run_id, "--json"]) == Exit.GOOD
    one = result(capsys.readouterr().out)
    same = ("run", "directory", "job", "state", "gpus", "site", "submitted")
    assert [listed[key] for key in same] == [one[key] for key in same]
