"""The launcher for real: several of them on this machine, with the variables that srun would set."""

from __future__ import annotations

import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from gpu_runner_inside.launcher.rendezvous import request

from tests.support.waiting import until

pytestmark = pytest.mark.integration

ROOT = Path(__file__).resolve().parents[2]
LAUNCH = ROOT / "recipes/lib/launch.py"
PROBE = ROOT / "recipes/probe/main.py"
FAULTS = ROOT / "tests/recipes/faults/main.py"


@dataclass(frozen=True)
class Task:
    """One launcher under way."""

    process: subprocess.Popen[str]
    run_dir: Path
    rank: int

    def end(self) -> tuple[int, str]:
        """(status, its standard error)."""
        _out, err = self.process.communicate(timeout=60)
        return self.process.returncode, err

    def record(self, kind: str) -> dict[str, Any]:
        record: dict[str, Any] = json.loads((self.run_dir / "ranks" / f"{self.rank}.{kind}.json").read_text())
        return record


def start(run_dir: Path, job: int, rank: int, size: int, words: list[str], env: dict[str, str] | None = None) -> Task:
    """Rank ``rank`` of ``size`` on two nodes, as srun starts it."""
    first = (size + 1) // 2
    node = 0 if rank < first else 1
    variables = {
        "PATH": os.environ["PATH"],
        "SLURM_PROCID": str(rank),
        "SLURM_NTASKS": str(size),
        "SLURM_LOCALID": str(rank - node * first),
        "SLURM_NODEID": str(node),
        "SLURM_STEP_TASKS_PER_NODE": f"{first},{size - first}" if size > 1 else "1",
        "SLURM_JOB_ID": str(job),
        "SLURM_STEP_ID": "0",
        "SLURMD_NODENAME": f"node{node}",
        "RUNNER_RDV_HOST": "127.0.0.1",
        "RUNNER_RDV_KEY": "of this job",
        **(env or {}),
    }
    argv = [sys.executable, str(LAUNCH), "--run", str(run_dir), *words]
    process = subprocess.Popen(argv, env=variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    return Task(process, run_dir, rank)


@pytest.fixture
def job() -> int:
    """A job id whose port is probably free on this machine at this moment."""
    return (os.getpid() * 131 + time.monotonic_ns() // 1000) % 16000


def program(text: str) -> list[str]:
    return ["--", sys.executable, "-c", text]


def test_four_ranks_meet_and_leave_their_records(tmp_path: Path, job: int) -> None:
    hostile = ["", "a b", "$HOME", "`x`", "'\"", "--", "ü", "\n"]
    words = [
        "--world",
        "4",
        "--local-sizes",
        "2,2",
        "--",
        sys.executable,
        str(PROBE),
        "--env",
        "HOROVOD_RANK",
        *hostile,
    ]
    tasks = [start(tmp_path, job, rank, 4, words) for rank in range(4)]
    assert [task.end()[0] for task in tasks] == [0, 0, 0, 0]
    for task in tasks:
        begun, ended, report, probe = (task.record(kind) for kind in ("start", "exit", "report", "probe"))
        assert (begun["met"], begun["size"], begun["host"]) == (True, 4, f"node{task.rank // 2}")
        assert begun["argv"][-len(hostile) :] == hostile
        assert (ended["status"], ended["exit_code"], ended["error"]) == (0, 0, None)
        assert ended["max_rss_bytes"] > 1_000_000
        assert (report["world_size"], probe["hosts"]) == (4, 2)
        assert probe["environment_base64"]["HOROVOD_RANK"]
    assert not list(tmp_path.rglob("*.tmp"))
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "ranks").iterdir()} == {0o600}


def test_a_single_task_needs_no_rendezvous(tmp_path: Path, job: int) -> None:
    task = start(tmp_path, job, 0, 1, program("import os; assert 'HOROVOD_GLOO_RENDEZVOUS_ADDR' not in os.environ"))
    assert task.end() == (0, "")
    assert task.record("start")["met"] is True


@pytest.mark.parametrize(("fault", "status", "code", "number"), [("exit:7", 7, 7, None), ("signal:9", 137, None, 9)])
def test_a_programs_end_is_handed_on(
    tmp_path: Path, job: int, fault: str, status: int, code: int | None, number: int | None
) -> None:
    tasks = [start(tmp_path, job, r, 2, ["--", sys.executable, str(FAULTS), "--fault", f"{fault}@1"]) for r in (0, 1)]
    assert [task.end()[0] for task in tasks] == [0, status]
    record = tasks[1].record("exit")
    assert (record["exit_code"], record["signal"], record["status"], record["error"]) == (code, number, status, None)


def test_another_world_than_planned_is_refused_and_recorded(tmp_path: Path, job: int) -> None:
    task = start(tmp_path, job, 0, 1, ["--world", "16", *program("raise SystemExit(99)")])
    status, err = task.end()
    assert status == 111
    assert "world-mismatch: 16 tasks were planned, but this task belongs to a world of 1" in err
    assert task.record("exit")["error"] == "world-mismatch"
    assert task.record("exit")["program_started_s"] is None


def test_a_rank_that_never_comes_is_named(tmp_path: Path, job: int) -> None:
    # Long enough for the three that come, also on a machine that is busy with much else.
    words = ["--rendezvous-timeout", "5", *program("")]
    tasks = [start(tmp_path, job, rank, 4, words) for rank in (0, 1, 3)]
    ends = [task.end() for task in tasks]
    assert [status for status, _ in ends] == [113, 113, 113]
    assert all("rank 2 of 4: not started, or died before" in err for _, err in ends[:1])
    assert tasks[0].record("start")["met"] is False


def test_a_rank_0_that_never_comes_is_named(tmp_path: Path, job: int) -> None:
    task = start(tmp_path, job, 1, 2, ["--rendezvous-timeout", "1", *program("")])
    status, err = task.end()
    assert status == 113
    assert "waited 1 s for rank 0 to serve the rendezvous on 127.0.0.1" in err
    assert task.record("exit")["error"] == "rendezvous-timeout"


def test_a_slow_rank_0_is_waited_for(tmp_path: Path, job: int) -> None:
    late = start(tmp_path, job, 1, 2, program(""))
    time.sleep(1.5)
    first = start(tmp_path, job, 0, 2, program(""))
    assert (late.end()[0], first.end()[0]) == (0, 0)
    assert late.record("exit")["waited_s"] > 1.0


def test_two_jobs_on_one_port_do_not_mix(tmp_path: Path, job: int) -> None:
    runs = [tmp_path / "a", tmp_path / "b"]
    port = {"RUNNER_RDV_PORT": str(12000 + job)}
    words = ["--", sys.executable, str(PROBE), "--sleep", "0.5"]
    tasks = [start(run, job + which, rank, 2, words, port) for rank in (1, 0) for which, run in enumerate(runs)]
    assert [task.end()[0] for task in tasks] == [0] * 4
    places = {task.record("start")["rendezvous"] for task in tasks}
    assert len(places) == 2
    assert all(task.record("report")["world_size"] == 2 for task in tasks)


def test_a_port_that_is_taken_by_something_else(tmp_path: Path, job: int) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 12000 + job))
        taken.listen()
        tasks = [start(tmp_path, job, rank, 2, ["--", sys.executable, str(PROBE)]) for rank in (0, 1)]
        assert [task.end()[0] for task in tasks] == [0, 0]
    assert not tasks[1].record("start")["rendezvous"].endswith(f":{12000 + job}")


def test_a_fixed_port_outside_the_range_that_is_taken_is_named(tmp_path: Path, job: int) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        task = start(tmp_path, job, 0, 2, program(""), {"RUNNER_RDV_PORT": str(port)})
        status, err = task.end()
    assert status == 114
    assert f"every port of {port} is taken on 127.0.0.1" in err


def test_a_rendezvous_host_that_is_not_rank_0s_is_reported(tmp_path: Path, job: int) -> None:
    task = start(tmp_path, job, 0, 2, program(""), {"RUNNER_RDV_HOST": "192.0.2.7"})
    status, err = task.end()
    assert status == 115
    assert "must be the node that rank 0 runs on" in err


def test_a_program_that_is_not_there(tmp_path: Path, job: int) -> None:
    missing, locked = (start(tmp_path / n, job, 0, 1, ["--", p]) for n, p in (("a", "/no/such"), ("b", "/etc/passwd")))
    assert missing.end()[0] == 127
    assert missing.record("exit")["error"] == "program-not-found"
    assert locked.end()[0] == 126
    assert locked.record("exit")["error"] == "program-not-executable"


@pytest.mark.parametrize(
    ("text", "error", "says"),
    [
        (b"#!/bin/sh\r\necho\r\n", "program-not-found", "Windows line ends (CRLF)"),
        (b"#!/no/such/python3 -u\n", "program-not-found", "its interpreter is not there: its first line names /no"),
        (b"echo\n", "program-not-executable", "its first line names no interpreter (#!)"),
        (b"#!/bin/sh\nexit 0\n", None, ""),
    ],
)  # fmt: skip
def test_a_script_whose_interpreter_cannot_be_started(
    tmp_path: Path, job: int, text: bytes, error: str | None, says: str
) -> None:
    script = tmp_path / "bin" / "my script"
    script.parent.mkdir()
    script.write_bytes(text)
    script.chmod(0o755)
    for number, (word, env) in enumerate(
        ((str(script), {}), (script.name, {"PATH": f"{script.parent}:/usr/bin:/bin"}))
    ):
        task = start(tmp_path / str(number), job + number, 0, 1, ["--", word], env)
        task.end()
        record = task.record("exit")
        assert record["error"] == error
        assert says in (record["message"] or "")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1, signal.SIGINT])
def test_signals_reach_the_program(tmp_path: Path, job: int, number: signal.Signals) -> None:
    text = (
        "import signal, sys, time\n"
        f"signal.signal({int(number)}, lambda *_: sys.exit(5))\n"
        "print('ready', flush=True)\ntime.sleep(30)"
    )
    task = start(tmp_path, job, 0, 1, program(text))
    assert task.process.stdout is not None
    assert task.process.stdout.readline() == "ready\n"
    task.process.send_signal(number)
    assert task.end()[0] == 5
    assert task.record("exit")["signals_forwarded"] == [int(number)]


def test_a_signal_before_the_program_is_started_ends_the_wait(tmp_path: Path, job: int) -> None:
    task = start(tmp_path, job, 1, 2, program(""))
    until((tmp_path / "ranks/1.start.json").exists, timeout_s=20, every_s=0.02)
    task.process.send_signal(signal.SIGTERM)
    assert task.end()[0] == 128 + signal.SIGTERM
    assert task.record("exit")["error"] == "stopped-before-start"


def test_nothing_is_left_running_when_the_launcher_is_killed(tmp_path: Path, job: int) -> None:
    words = program("import os, time; print(os.getpid(), flush=True); time.sleep(60)")
    tasks = [start(tmp_path, job, rank, 2, words) for rank in (0, 1)]
    pids = []
    for task in tasks:
        assert task.process.stdout is not None
        pids.append(int(task.process.stdout.readline()))
    place = tasks[0].record("start")["rendezvous"]
    for task in tasks:
        task.process.kill()
        task.end()
    time.sleep(0.5)
    assert not any(is_running(pid) for pid in pids)
    address, _, port = place.partition(":")
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((address, int(port)), timeout=2).close()


def is_running(pid: int) -> bool:
    """Whether the process is there and no zombie."""
    try:
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False


def test_a_run_directory_that_takes_no_records(tmp_path: Path, job: int) -> None:
    (tmp_path / "ranks").write_text("in the way")
    task = start(tmp_path, job, 0, 1, program("raise SystemExit(99)"))
    status, err = task.end()
    assert status == 116
    assert "record-not-written: start record" in err


def test_an_unforeseen_error_is_recorded_too(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    inner = shlex.join([sys.executable, str(LAUNCH), "--run", str(tmp_path), "--", "true"])
    done = subprocess.run(
        ["sh", "-c", f"rmdir ../gone; exec {inner}"], cwd=gone, capture_output=True, text=True, timeout=60, check=False
    )
    record = json.loads((tmp_path / "ranks/0.exit.json").read_text())
    assert (done.returncode, record["status"], record["error"]) == (1, 1, "launcher-fault")
    assert record["message"].startswith("FileNotFoundError(2")
    assert done.stderr.endswith(f"launcher-fault: {record['message']}\n")
    assert "Traceback" not in done.stderr


AFTER_THE_PROGRAM = """
import os, signal
from gpu_runner_inside.launcher import program
relay = program.Relay()
ended = relay.run(["sh", "-c", "exit 7"], os.environ)
os.kill(os.getpid(), signal.SIGTERM)
print(ended.code, relay.forwarded)
"""
TWICE_BEFORE_IT = """
import os, signal, time
from gpu_runner_inside.launcher import program
relay = program.Relay()
try:
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(5)
except program.StoppedError as stopped:
    os.kill(os.getpid(), signal.SIGINT)
    print(stopped.number)
"""


@pytest.mark.parametrize(("text", "printed"), [(AFTER_THE_PROGRAM, "7 []\n"), (TWICE_BEFORE_IT, "15\n")])
def test_no_signal_keeps_the_launcher_from_its_last_record(text: str, printed: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", text],
        cwd=LAUNCH.parent / "modules",
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, printed, "")


def test_a_launcher_whose_output_is_closed_leaves_its_record(tmp_path: Path, job: int) -> None:
    task = start(tmp_path, job, 0, 1, ["--world", "16", *program("")])
    assert task.process.stderr is not None
    task.process.stderr.close()
    assert task.process.wait(timeout=60) == 111
    assert task.record("exit")["error"] == "world-mismatch"


@pytest.mark.parametrize("mode", ["-I", "-S", "-P"])
def test_the_launcher_finds_its_package_in_every_mode_of_python(mode: str) -> None:
    if mode == "-P" and sys.version_info < (3, 11):
        pytest.skip("Python 3.11 brought -P")
    done = subprocess.run(
        [sys.executable, mode, str(LAUNCH), "--help"], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("usage: launch.py")


def test_a_programs_path_gets_our_package_and_the_meter_and_nothing_else(tmp_path: Path, job: int) -> None:
    """Modules of ours can hide none of the program's or the standard library's."""
    task = start(tmp_path, job, 0, 1, program("import os; print(os.environ['RUNNER_LIB'])"))
    assert task.process.stdout is not None
    import_directory = Path(task.process.stdout.read().strip())
    assert task.end()[0] == 0
    assert {path.name for path in import_directory.iterdir()} - {"__pycache__"} == {
        "gpu_runner_inside",
        "runner_meter.py",
    }
    assert import_directory != LAUNCH.parent


@pytest.mark.parametrize("words", [[], ["--"], ["--world", "x", "--", "true"], ["--local-sizes", "a", "--", "true"]])
def test_usage(tmp_path: Path, job: int, words: list[str]) -> None:
    status, err = start(tmp_path, job, 0, 1, words).end()
    assert status == 2
    assert "usage: launch.py" in err
    assert "Traceback" not in err


def test_ranks_of_a_node_leave_together(tmp_path: Path, job: int) -> None:
    """One of them may serve the image to all: none that ended well leaves before the last of its node has ended."""
    naps = [0.0, 1.5, 0.0, 0.0]  # ranks 0, 1 on one node, 2, 3 on the other
    tasks = [
        start(tmp_path, job, rank, 4, ["--leave-together", "60", *program(f"import time; time.sleep({nap})")])
        for rank, nap in enumerate(naps)
    ]
    gone: dict[int, float] = {}
    while len(gone) < 4:
        for task in tasks:
            if task.rank not in gone and task.process.poll() is not None:
                gone[task.rank] = time.time()
        time.sleep(0.01)
    assert [task.process.returncode for task in tasks] == [0, 0, 0, 0]
    slept_until = tasks[1].record("exit")["ended_s"]
    assert gone[0] >= slept_until - 0.05
    assert gone[2] < slept_until
    assert gone[3] < slept_until


def test_a_rank_that_failed_leaves_at_once(tmp_path: Path, job: int) -> None:
    failed = start(tmp_path, job, 0, 4, ["--leave-together", "60", "--wireup", "env", *program("raise SystemExit(3)")])
    stays = start(
        tmp_path, job, 1, 4, ["--leave-together", "60", "--wireup", "env", *program("import time; time.sleep(60)")]
    )
    assert failed.end()[0] == 3
    assert stays.process.poll() is None
    stays.process.terminate()
    stays.end()


@pytest.mark.parametrize(
    ("handler", "said", "forwarded"), [("lambda *_: os.write(1, b'noticed')", "noticed", [10]), ("None", "", [])]
)
def test_a_notice_ends_no_program_that_does_not_expect_it(
    tmp_path: Path, job: int, handler: str, said: str, forwarded: list[int]
) -> None:
    """USR1 near the time limit: for programs that have a handler; without one it would kill them."""
    text = (
        f"import os, signal, time; h = {handler}; h and signal.signal(signal.SIGUSR1, h); print('up', flush=True);"
        "time.sleep(2)"
    )
    task = start(tmp_path, job, 0, 1, program(text))
    assert task.process.stdout is not None
    assert task.process.stdout.readline() == "up\n"
    task.process.send_signal(signal.SIGUSR1)
    out, _err = task.process.communicate(timeout=60)
    assert task.process.returncode == 0
    assert out.strip() == said
    assert task.record("exit")["signals_forwarded"] == forwarded


def test_a_notice_to_every_process_ends_no_program(tmp_path: Path, job: int) -> None:
    """As Slurm sends it: to the program itself, too."""
    text = "import os, time; print(os.getpid(), flush=True); time.sleep(1)"
    task = start(tmp_path, job, 0, 1, program(text))
    assert task.process.stdout is not None
    os.kill(int(task.process.stdout.readline()), signal.SIGUSR1)
    assert task.end()[0] == 0


def test_a_rank_with_another_jobs_token_is_rejected_with_the_reason(tmp_path: Path, job: int) -> None:
    """It finds a rendezvous that refuses it; the others wait for it until their time-out."""
    patience = {"RUNNER_RDV_TIMEOUT_S": "2"}
    head = start(tmp_path, job, 0, 2, program(""), env=patience)
    stale = start(tmp_path, job, 1, 2, program(""), env={**patience, "RUNNER_RUN_ID": "stale"})
    assert (head.end()[0], stale.end()[0]) == (113, 113)
    assert "waited 2 s for rank 1 of 2" in head.record("exit")["message"]
    assert "another job's answers, which refuses this task's token" in stale.record("exit")["message"]


def test_what_strangers_and_records_see_of_a_job_does_not_let_them_in(tmp_path: Path, job: int) -> None:
    show = "import os, time; print(os.environ['RUNNER_RENDEZVOUS'], flush=True); time.sleep(2)"
    tasks = [start(tmp_path, job, rank, 2, program(show)) for rank in range(2)]
    assert tasks[0].process.stdout is not None
    place, _, secret = tasks[0].process.stdout.readline().strip().partition("/")
    host, _, port = place.partition(":")
    public = tasks[0].record("start")["token"]
    statuses = [request(host, int(port), "GET", f"/{token}/lobby/present")[0] for token in (public, secret)]
    lines = subprocess.run(["ps", "-eww", "-o", "args"], capture_output=True, text=True, check=True).stdout
    assert [task.end()[0] for task in tasks] == [0, 0]
    assert statuses == [403, 200]
    files = [path.read_text() for path in tmp_path.rglob("*") if path.is_file()]
    assert len(secret) == 32 and not [each for each in (lines, *files) if secret in each]


def test_without_a_key_no_rank_waits(tmp_path: Path, job: int) -> None:
    task = start(tmp_path, job, 0, 2, program(""), {"RUNNER_RDV_KEY": ""})
    assert task.end()[0] == 112


def test_a_patience_that_is_no_number(tmp_path: Path, job: int) -> None:
    task = start(tmp_path, job, 0, 2, program(""), env={"RUNNER_RDV_TIMEOUT_S": "soon"})
    assert task.end()[0] == 113
    assert "RUNNER_RDV_TIMEOUT_S is no number of seconds: 'soon'" in task.record("exit")["message"]


def test_a_program_with_processes_of_its_own_sees_no_task(tmp_path: Path, job: int) -> None:
    """Nothing by which Lightning or torchrun would take itself for one of a starter's tasks."""
    record = {"PMI_RANK": "0", "SLURM_NTASKS_PER_NODE": "1", "SLURM_STEP_NUM_TASKS": "1", "CUDA_VISIBLE_DEVICES": "0,1"}
    words = ["--wireup", "own", *program("import json, os; print(json.dumps(dict(os.environ)))")]
    task = start(tmp_path, job, 0, 1, words, record)
    assert task.process.stdout is not None
    seen = json.loads(task.process.stdout.read())
    assert task.end()[0] == 0
    places = {name for name in seen if "RANK" in name or "TASK" in name or "SIZE" in name}
    assert places == {"RUNNER_RANK", "RUNNER_LOCAL_RANK"}
    assert (seen["SLURM_JOB_ID"], seen["CUDA_VISIBLE_DEVICES"]) == (str(job), "0,1")
    assert task.record("start")["wireup"] == "own"


def test_torchruns_ranks_meet_and_a_torch_program_finds_its_place(tmp_path: Path, job: int) -> None:
    text = (
        "import os; names = 'GROUP_RANK', 'MASTER_PORT', 'TORCHELASTIC_RUN_ID'; "
        "assert all(map(os.environ.get, names)); assert 'HOROVOD_RANK' not in os.environ"
    )
    tasks = [start(tmp_path, job, rank, 2, ["--wireup", "torchrun", *program(text)]) for rank in range(2)]
    assert [task.end() for task in tasks] == [(0, ""), (0, "")]
    assert all(task.record("start")["met"] for task in tasks)


def test_where_the_program_meets_the_others_itself_the_launcher_says_nothing_against_it(
    tmp_path: Path, job: int
) -> None:
    tasks = [start(tmp_path, job, rank, 2, ["--wireup", "env", *program("")]) for rank in range(2)]
    assert [task.end() for task in tasks] == [(0, ""), (0, "")]
    for task in tasks:
        record = task.record("start")
        assert (record["met"], record["rendezvous"], record["wireup"]) == (True, None, "env")
