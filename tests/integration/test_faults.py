"""Faults that are planted in real jobs, each with the verdict, the telling sentence and the exit code that it must get.

The slow ones, time limits for one, are in tests/long/faults.
"""

import os
import random
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.support.commands import Runner
from tests.support.daemons import CONTROLLER, Daemons
from tests.support.documents import result
from tests.support.planted_faults import (
    FAULTS,
    MEASURED,
    NAP,
    Planted,
    is_reported,
    judge_what_is_left,
    killed_while_submitting,
    started,
    submitted,
    submitted_and_reported,
    under_way,
    with_sbatch,
)
from tests.support.waiting import until

pytestmark = pytest.mark.integration
IMPATIENT = ("--env", "RUNNER_RDV_TIMEOUT_S=6")
TOLD = FAULTS | {
    "all exit with 1": Planted("exit:1", "failed", 5, ("exited with code 1",)),
    "a rank dies before its program meets": Planted(
        "die-early:4@2", "failed", 5, ("rank 2 on dgx02 exited with code 4",)
    ),
    "a rank never starts": Planted(
        "", "infrastructure", 8, ("waited 6 s for rank 3 of 4: not started", "no start record of rank 3"),
        before="exec sleep 1000@3", words=IMPATIENT,
    ),
    "a rank has another job's token": Planted(
        "", "infrastructure", 8, ("rendezvous-timeout: waited 6 s for rank", "rank 2 on dgx02 presented the token of"),
        before="export RUNNER_RUN_ID=stale@2", words=IMPATIENT,
    ),
    "rank 0 starts late": Planted("", "measured", 0, before="sleep 4@0"),
    "a rank's program begins late": Planted("late:3@1", "measured", 0),
    "worlds of one": Planted("size-one", "not-proven", 6, ("saw a world of size 1, planned 4",)),
    "no report": Planted("no-report@3", "not-proven", 6, ("left no report",)),
    "the same data everywhere": Planted("same-seed", "not-proven", 6, ("", "trained on the same data")),
    "weights differ": Planted("weights-differ", "not-proven", 6, ("", "not synchronised")),
    "the loss is no number": Planted("nan@1", "not-proven", 6, ("", "not finite")),
    "another device": Planted("wrong-device", "not-proven", 6, ("", "did not compute on cpu")),
    "one device for two": Planted("same-device", "not-proven", 6, ("shared one device",)),
    "no result": Planted("no-result", "not-proven", 6, ("left no result",)),
    "half a result": Planted("torn-result", "not-proven", 6, ("result.json",)),
    "a result of another schema": Planted("wrong-schema", "not-proven", 6, ("result.json",)),
}  # fmt: skip


@pytest.fixture(scope="module")
def runs(runner: Runner) -> dict[str, Path]:
    return submitted(runner, TOLD)


@pytest.mark.parametrize("name", TOLD)
def test_a_planted_fault_is_reported(runner: Runner, runs: dict[str, Path], name: str) -> None:
    is_reported(runner, runs[name], TOLD[name])


PORT_TAKEN = """
import socket, sys
server = socket.create_server((sys.argv[1], int(sys.argv[2])), backlog=128)
print("taken", flush=True)
while True:
    try:
        peer, _ = server.accept()
        peer.sendall(b"who are you?")
        peer.close()
    except OSError:
        pass
"""


def rendezvous_port(daemons: Daemons) -> int:
    """The first that the next job tries; the others only its ranks know."""
    submitted = daemons.next_job() + 1  # the trial that asks for the start takes a number, too
    return 12000 + submitted % 16000


STRANGER = """
import socket, sys
while True:
    for path in ("/0123456789abcdef/lobby/2", "/lobby/2", "/"):
        try:
            with socket.create_connection(("10.0.0.11", int(sys.argv[1])), 1) as sock:
                sock.sendall(b"PUT %s HTTP/1.1\\r\\nContent-Length: 4\\r\\n\\r\\nevil" % path.encode())
                sock.recv(100)
        except OSError:
            pass
"""


def test_a_stranger_at_the_rendezvous_does_no_harm(ill: Runner, daemons: Daemons) -> None:
    """Another job's rank that puts values there without a pause."""
    with in_box(daemons, STRANGER, str(rendezvous_port(daemons))):
        submitted_and_reported(ill, MEASURED)


def test_a_node_that_is_set_down(ill: Runner, daemons: Daemons) -> None:
    sentence = "the scheduler reports NODE_FAIL: dgx02 failed (NodeDown)"
    planted = Planted("nap:300", "infrastructure", 8, (sentence,))
    run = started(ill, planted)
    daemons.inside("scontrol", "update", "NodeName=dgx02", "State=DOWN", "Reason=planted")
    try:
        is_reported(ill, run, planted)
    finally:
        daemons.await_up("dgx02")


@pytest.mark.parametrize(
    "says",
    [
        ("the job was cancelled; the scheduler does not say by whom",),
        ("the job was cancelled by ", "did not finish the program"),
    ],
    ids=["by another user", "through us"],
)
def test_a_job_that_was_cancelled(ill: Runner, daemons: Daemons, says: tuple[str, ...]) -> None:
    planted = Planted("nap:300", "cancelled", 5, says)
    run = started(ill, planted)
    if len(says) == 1:
        daemons.inside("scancel", *daemons.jobs_of(str(run)))
    else:
        ill("cancel", run.name, code=0)
    is_reported(ill, run, planted)


@pytest.mark.parametrize("name", [CONTROLLER, "dgx01"])
def test_a_daemon_that_starts_anew_disturbs_no_job(ill: Runner, daemons: Daemons, name: str) -> None:
    """The job goes on, and so does the process that waits for it."""
    planted = Planted("nap:3", "measured", 0)
    child, run = ill.start_until(under_way(4), *planted.submission("--wait"))
    daemons.restart(name)
    out, err = child.communicate(timeout=120)
    assert child.returncode == 0, (out, err)
    assert b"Traceback" not in err
    is_reported(ill, run, planted)


def test_two_that_wait_agree_and_logs_end_by_themselves(ill: Runner, tmp_path: Path) -> None:
    """From processes of their own, in a working directory of their own."""
    run = started(ill, Planted("nap:2", "measured", 0))
    children = [
        subprocess.Popen(
            ill.argv(*words), cwd=tmp_path, env=ill.environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        for words in (("wait", "--json", run.name), ("wait", "--json", str(run)), ("logs", "-f", run.name))
    ]
    said = [child.communicate(timeout=120) for child in children]
    assert [child.returncode for child in children] == [0, 0, 0], said
    assert said[0][0] == said[1][0]
    assert result(said[0][0])["verdict"]["outcome"] == "measured"


def test_the_submitting_process_is_killed_at_any_moment(ill: Runner, daemons: Daemons) -> None:
    """A few of the moments that tests/long/faults goes through."""
    chance = random.Random(1)
    for run in killed_while_submitting(ill, [chance.uniform(0.4, 1.0) for _ in range(5)]):
        judge_what_is_left(ill, daemons, run)


def test_a_submission_that_is_killed_while_sbatch_hangs_is_one_job(
    ill: Runner, daemons: Daemons, tmp_path: Path
) -> None:
    """sbatch did submit, and its answer never comes: the job is found by its directory, and there is one."""
    elsewhere = with_sbatch(ill, tmp_path, HANGS)
    with killed_at_the_end(elsewhere.start(*NAP.submission())):
        run = first_run(elsewhere)
        until(lambda: daemons.jobs_of(str(run)), "a job of the run")
    is_reported(elsewhere, run, NAP)
    assert len(daemons.jobs_of(str(run))) == 1


HANGS = 'BIN/sbatch "$@" >/dev/null; exec sleep 600'


def test_an_sbatch_that_lost_the_answer_did_submit(ill: Runner, daemons: Daemons, tmp_path: Path) -> None:
    """Slurm's own words for a controller that was too slow to answer, as on a busy cluster."""
    words = "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation"
    elsewhere = with_sbatch(ill, tmp_path, f'BIN/sbatch "$@" >/dev/null; echo "{words}" >&2; exit 1')
    run, _verdict = submitted_and_reported(elsewhere, MEASURED)
    assert len(daemons.jobs_of(str(run))) == 1


def test_an_interrupted_submission_says_that_it_may_have_been_taken(
    ill: Runner, daemons: Daemons, tmp_path: Path
) -> None:
    elsewhere = with_sbatch(ill, tmp_path, HANGS)
    child = elsewhere.start(*MEASURED.submission())
    with killed_at_the_end(child):
        run = first_run(elsewhere)
        until(lambda: daemons.jobs_of(str(run)), "a job of the run")
        child.send_signal(signal.SIGINT)
        _out, err = child.communicate(timeout=60)
    assert child.returncode == 130
    assert b"it may have accepted the job" in err
    assert f"cancel {run.name}".encode() in err
    assert result(elsewhere("wait", "--json", run.name, code=0).out)["verdict"]["outcome"] == "measured"


def first_run(runner: Runner) -> Path:
    record = until(lambda: next(runner.runs.glob("*/job.json"), None), "a run", every_s=0.05)
    assert record is not None
    return record.parent


@contextmanager
def killed_at_the_end(child: subprocess.Popen[bytes]) -> Iterator[None]:
    try:
        yield
    finally:
        with suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.communicate()


@contextmanager
def in_box(daemons: Daemons, program: str, *arguments: str, line: bytes = b"") -> Iterator[None]:
    """A program of Python beside the job; ``line``: what it prints when it has begun."""
    words = [str(daemons.box.bin_dir / "in-box"), "python3", "-c", program, *arguments]
    with subprocess.Popen(words, stdout=subprocess.PIPE, start_new_session=True) as child:
        assert child.stdout is not None
        try:
            assert not line or child.stdout.readline() == line
            yield
        finally:
            child.terminate()


def test_a_port_that_is_taken_is_passed_over(ill: Runner, daemons: Daemons) -> None:
    """Another program listens on it, and answers with nonsense."""
    with in_box(daemons, PORT_TAKEN, "10.0.0.11", str(rendezvous_port(daemons)), line=b"taken\n"):
        submitted_and_reported(ill, MEASURED)
