"""The launcher for real: several of them on this machine, with the variables that srun would set."""

import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from gpu_runner_inside.launcher.rendezvous import request

from tests.support.commands import ran
from tests.support.launchers import LAUNCH, Task, by_srun, command, python, start
from tests.support.rank_records import document_of
from tests.support.waiting import is_running, until

pytestmark = pytest.mark.integration
ROOT = Path(__file__).resolve().parents[2]
PROBE = ["--", sys.executable, str(ROOT / "recipes/probe/main.py")]
FAULTS = ["--", sys.executable, str(ROOT / "tests/recipes/faults/main.py")]


@dataclass(frozen=True)
class Job:
    """Launchers of one job, whose port is probably free on this machine at this moment."""

    run: Path
    number: int

    def start(self, rank: int, size: int, words: list[str], **env: str) -> Task:
        """Rank ``rank`` of ``size`` on two nodes, as srun starts it."""
        sizes = [(size + 1) // 2, size // 2] if size > 1 else [1]
        return start(self.run, words, rank, by_srun(rank, sizes, self.number) | env)

    def all(self, size: int, words: list[str]) -> list[Task]:
        return [self.start(rank, size, words) for rank in range(size)]


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path, (os.getpid() * 131 + time.monotonic_ns() // 1000) % 16000)


def statuses(tasks: Iterable[Task]) -> list[int]:
    return [task.end()[0] for task in tasks]


def test_four_ranks_meet_and_leave_their_records(job: Job, tmp_path: Path) -> None:
    hostile = ["", "a b", "$HOME", "`x`", "'\"", "--", "ü", "\n"]
    tasks = job.all(4, ["--world", "4", "--local-sizes", "2,2", *PROBE, "--env", "HOROVOD_RANK", *hostile])
    assert statuses(tasks) == [0, 0, 0, 0]
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


def test_a_single_task_needs_no_rendezvous(job: Job) -> None:
    task = job.start(0, 1, python("import os; assert 'HOROVOD_GLOO_RENDEZVOUS_ADDR' not in os.environ"))
    assert task.end() == (0, "")
    assert task.record("start")["met"] is True


@pytest.mark.parametrize(("fault", "status", "code", "number"), [("exit:7", 7, 7, None), ("signal:9", 137, None, 9)])
def test_a_programs_end_is_handed_on(job: Job, fault: str, status: int, code: int | None, number: int | None) -> None:
    tasks = job.all(2, [*FAULTS, "--fault", f"{fault}@1"])
    assert statuses(tasks) == [0, status]
    record = tasks[1].record("exit")
    assert (record["exit_code"], record["signal"], record["status"], record["error"]) == (code, number, status, None)


FIRST, SECOND, ALONE = (0, 2), (1, 2), (0, 1)


@pytest.mark.parametrize(
    ("place", "words", "env", "status", "error", "says"),
    [
        (ALONE, ["--world", "16"], {}, 111, "world-mismatch",
         "world-mismatch: 16 tasks were planned, but this task belongs to a world of 1"),
        (SECOND, ["--rendezvous-timeout", "1"], {}, 113, "rendezvous-timeout",
         "waited 1 s for rank 0 to serve the rendezvous on 127.0.0.1"),
        (FIRST, [], {"RUNNER_RDV_HOST": "192.0.2.7"}, 115, None, "must be the node that rank 0 runs on"),
        (FIRST, [], {"RUNNER_RDV_KEY": ""}, 112, None, ""),
        (FIRST, [], {"RUNNER_RDV_TIMEOUT_S": "soon"}, 113, None, "RUNNER_RDV_TIMEOUT_S is no number of seconds"),
        (ALONE, ["--", "/no/such"], {}, 127, "program-not-found", ""),
        (ALONE, ["--", "/etc/passwd"], {}, 126, "program-not-executable", ""),
        *((ALONE, words, {}, 2, "", "usage: launch.py")
          for words in ([], ["--"], ["--world", "x", "--", "true"], ["--local-sizes", "a", "--", "true"])),
    ],
)  # fmt: skip
def test_what_the_launcher_refuses_is_reported_and_recorded(
    job: Job, place: tuple[int, int], words: list[str], env: dict[str, Any], status: int, error: str | None, says: str
) -> None:
    """But for words that make no sense, which leave no record."""
    whole = words if "--" in words or status == 2 else [*words, *python("raise SystemExit(99)")]
    task = job.start(*place, whole, **env)
    ended, err = task.end()
    assert ended == status
    assert says in err
    assert "Traceback" not in err
    if error != "":
        assert error in (None, task.record("exit")["error"])
    if error is None:
        assert task.record("exit")["program_started_s"] is None


def test_a_rank_that_never_comes_is_named(job: Job) -> None:
    # Long enough for the three that come, also on a machine that is busy with much else.
    tasks = [job.start(rank, 4, ["--rendezvous-timeout", "5", *python("")]) for rank in (0, 1, 3)]
    ends = [task.end() for task in tasks]
    assert [status for status, _ in ends] == [113, 113, 113]
    assert "rank 2 of 4: not started, or died before" in ends[0][1]
    assert tasks[0].record("start")["met"] is False


def test_a_slow_rank_0_is_waited_for(job: Job) -> None:
    late = job.start(1, 2, python(""))
    time.sleep(1.5)
    assert statuses((job.start(0, 2, python("")), late)) == [0, 0]
    assert late.record("exit")["waited_s"] > 1.0


def test_two_jobs_on_one_port_do_not_mix(tmp_path: Path, job: Job) -> None:
    jobs = [Job(tmp_path / name, job.number + which) for which, name in enumerate("ab")]
    port = str(12000 + job.number)
    tasks = [each.start(rank, 2, [*PROBE, "--sleep", "0.5"], RUNNER_RDV_PORT=port) for rank in (1, 0) for each in jobs]
    assert statuses(tasks) == [0] * 4
    assert len({task.record("start")["rendezvous"] for task in tasks}) == 2
    assert all(task.record("report")["world_size"] == 2 for task in tasks)


def test_a_port_that_is_taken_by_something_else(job: Job) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 12000 + job.number))
        taken.listen()
        tasks = job.all(2, PROBE)
        assert statuses(tasks) == [0, 0]
    assert not tasks[1].record("start")["rendezvous"].endswith(f":{12000 + job.number}")


def test_a_fixed_port_outside_the_range_that_is_taken_is_named(job: Job) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        status, err = job.start(0, 2, python(""), RUNNER_RDV_PORT=str(port)).end()
    assert status == 114
    assert f"every port of {port} is taken on 127.0.0.1" in err


@pytest.mark.parametrize(
    ("text", "error", "says"),
    [
        (b"#!/bin/sh\r\necho\r\n", "program-not-found", "Windows line ends (CRLF)"),
        (b"#!/no/such/python3 -u\n", "program-not-found", "its interpreter is not there: its first line names /no"),
        (b"echo\n", "program-not-executable", "its first line names no interpreter (#!)"),
        (b"#!/bin/sh\nexit 0\n", None, ""),
    ],
)  # fmt: skip
@pytest.mark.parametrize("by_path", [True, False], ids=["by its path", "by PATH"])
def test_a_script_whose_interpreter_cannot_be_started(
    tmp_path: Path, job: Job, text: bytes, error: str | None, says: str, by_path: bool
) -> None:
    script = tmp_path / "bin" / "my script"
    script.parent.mkdir()
    script.write_bytes(text)
    script.chmod(0o755)
    env = {} if by_path else {"PATH": f"{script.parent}:/usr/bin:/bin"}
    task = job.start(0, 1, ["--", str(script) if by_path else script.name], **env)
    task.end()
    record = task.record("exit")
    assert record["error"] == error
    assert says in (record["message"] or "")


LEAVES, NOTES, NO_HANDLER = "lambda *_: sys.exit(5)", "lambda *_: os.write(1, b'noticed')", "None"


@pytest.mark.parametrize(
    ("number", "handler", "ended", "forwarded"),
    [
        *((number, LEAVES, (5, ""), [number]) for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)),
        (signal.SIGUSR1, NOTES, (0, "noticed"), [signal.SIGUSR1]),
        (signal.SIGUSR1, NO_HANDLER, (0, ""), []),
    ],
)
def test_signals_reach_the_program_but_a_notice_ends_none_that_does_not_expect_it(
    job: Job, number: signal.Signals, handler: str, ended: tuple[int, str], forwarded: list[signal.Signals]
) -> None:
    """USR1 near the time limit: for programs that have a handler; without one it would kill them."""
    task = job.start(0, 1, python(
        f"import os, signal, sys, time; h = {handler}; h and signal.signal({int(number)}, h); print('up', flush=True);"
        "time.sleep(2)"
    ))  # fmt: skip
    assert task.line() == "up"
    task.process.send_signal(number)
    out, _err = task.process.communicate(timeout=60)
    assert (task.process.returncode, out.strip()) == ended
    assert task.record("exit")["signals_forwarded"] == [int(each) for each in forwarded]


def test_a_signal_before_the_program_is_started_ends_the_wait(tmp_path: Path, job: Job) -> None:
    task = job.start(1, 2, python(""))
    until((tmp_path / "ranks/1.start.json").exists, timeout_s=20, every_s=0.02)
    task.process.send_signal(signal.SIGTERM)
    assert task.end()[0] == 128 + signal.SIGTERM
    assert task.record("exit")["error"] == "stopped-before-start"


def test_nothing_is_left_running_when_the_launcher_is_killed(job: Job) -> None:
    tasks = job.all(2, python("import os, time; print(os.getpid(), flush=True); time.sleep(60)"))
    pids = [int(task.line()) for task in tasks]
    address, _, port = tasks[0].record("start")["rendezvous"].partition(":")
    for task in tasks:
        task.process.kill()
        task.end()
    time.sleep(0.5)
    assert not any(is_running(pid) for pid in pids)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((address, int(port)), timeout=2).close()


def test_a_run_directory_that_takes_no_records(tmp_path: Path, job: Job) -> None:
    (tmp_path / "ranks").write_text("in the way")
    status, err = job.start(0, 1, python("raise SystemExit(99)")).end()
    assert status == 116
    assert "record-not-written: start record" in err


def test_an_unforeseen_error_is_recorded_too(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    inner = shlex.join([sys.executable, str(LAUNCH), "--run", str(tmp_path), "--", "true"])
    err = ran(["sh", "-c", f"rmdir ../gone; exec {inner}"], cwd=gone, code=1).err
    record = document_of(tmp_path, "ranks/0.exit")
    assert (record["status"], record["error"]) == (1, "launcher-fault")
    assert record["message"].startswith("FileNotFoundError(2")
    assert err.endswith(f"launcher-fault: {record['message']}\n")


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
    assert ran([sys.executable, "-c", text], cwd=LAUNCH.parent / "modules") == (printed, "")


def test_a_launcher_whose_output_is_closed_leaves_its_record(job: Job) -> None:
    task = job.start(0, 1, ["--world", "16", *python("")])
    assert task.process.stderr is not None
    task.process.stderr.close()
    assert task.process.wait(timeout=60) == 111
    assert task.record("exit")["error"] == "world-mismatch"


@pytest.mark.parametrize("mode", ["-I", "-S", "-P"])
def test_the_launcher_finds_its_package_in_every_mode_of_python(mode: str) -> None:
    if mode == "-P" and sys.version_info < (3, 11):
        pytest.skip("Python 3.11 brought -P")
    done = ran([sys.executable, mode, str(LAUNCH), "--help"])
    assert (done.out.startswith("usage: launch.py"), done.err) == (True, "")


def test_a_programs_path_gets_our_package_and_the_meter_and_nothing_else(job: Job) -> None:
    """Modules of ours can hide none of the program's or the standard library's."""
    task = job.start(0, 1, python("import os; print(os.environ['RUNNER_LIB'])"))
    import_directory = Path(task.line())
    assert task.end()[0] == 0
    names = {path.name for path in import_directory.iterdir()} - {"__pycache__"}
    assert names == {"gpu_runner_inside", "runner_meter.py"}
    assert import_directory != LAUNCH.parent


def test_ranks_of_a_node_leave_together(job: Job) -> None:
    """One of them may serve the image to all: none that ended well leaves before the last of its node has ended."""
    naps = [0.0, 1.5, 0.0, 0.0]  # ranks 0, 1 on one node, 2, 3 on the other
    together = ["--leave-together", "60"]
    tasks = [job.start(rank, 4, [*together, *python(f"import time; time.sleep({n})")]) for rank, n in enumerate(naps)]
    gone: dict[int, float] = {}
    while len(gone) < 4:
        for task in tasks:
            if task.rank not in gone and task.process.poll() is not None:
                gone[task.rank] = time.time()
        time.sleep(0.01)
    assert statuses(tasks) == [0, 0, 0, 0]
    slept_until = tasks[1].record("exit")["ended_s"]
    assert gone[0] >= slept_until - 0.05
    assert max(gone[2], gone[3]) < slept_until


def test_a_rank_that_failed_leaves_at_once(job: Job) -> None:
    words = ["--leave-together", "60", "--wireup", "env"]
    failed = job.start(0, 4, [*words, *python("raise SystemExit(3)")])
    stays = job.start(1, 4, [*words, *python("import time; time.sleep(60)")])
    assert failed.end()[0] == 3
    assert stays.process.poll() is None
    stays.process.terminate()
    stays.end()


def test_a_notice_to_every_process_ends_no_python(job: Job) -> None:
    """As Slurm sends it: to the program itself, too."""
    task = job.start(0, 1, python("import os, time; print(os.getpid(), flush=True); time.sleep(1)"))
    os.kill(int(task.line()), signal.SIGUSR1)
    assert task.end()[0] == 0


def test_a_rank_with_another_jobs_token_is_rejected_with_the_reason(job: Job) -> None:
    """It finds a rendezvous that refuses it; the others wait for it until their time-out."""
    head = job.start(0, 2, python(""), RUNNER_RDV_TIMEOUT_S="2")
    stale = job.start(1, 2, python(""), RUNNER_RDV_TIMEOUT_S="2", RUNNER_RUN_ID="stale")
    assert statuses((head, stale)) == [113, 113]
    assert "waited 2 s for rank 1 of 2" in head.record("exit")["message"]
    assert "another job's answers, which refuses this task's token" in stale.record("exit")["message"]


def test_what_strangers_and_records_see_of_a_job_does_not_let_them_in(tmp_path: Path, job: Job) -> None:
    tasks = job.all(2, python("import os, time; print(os.environ['RUNNER_RENDEZVOUS'], flush=True); time.sleep(2)"))
    place, _, secret = tasks[0].line().partition("/")
    host, _, port = place.partition(":")
    public = tasks[0].record("start")["token"]
    answers = [request(host, int(port), "GET", f"/{token}/lobby/present")[0] for token in (public, secret)]
    lines = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):  # one that has ended since
            lines.append(path.read_text(errors="replace"))
    assert statuses(tasks) == [0, 0]
    assert answers == [403, 200]
    files = [path.read_text() for path in tmp_path.rglob("*") if path.is_file()]
    assert len(secret) == 32 and not [each for each in (*lines, *files) if secret in each]


def test_a_program_with_processes_of_its_own_sees_no_task(job: Job) -> None:
    """Nothing by which Lightning or torchrun would take itself for one of a starter's tasks."""
    record = {"PMI_RANK": "0", "SLURM_NTASKS_PER_NODE": "1", "SLURM_STEP_NUM_TASKS": "1", "CUDA_VISIBLE_DEVICES": "0,1"}
    words = ["--wireup", "own", *python("import json, os; print(json.dumps(dict(os.environ)))")]
    task = job.start(0, 1, words, **record)
    seen = json.loads(task.line())
    assert task.end()[0] == 0
    places = {name for name in seen if "RANK" in name or "TASK" in name or "SIZE" in name}
    assert places == {"RUNNER_RANK", "RUNNER_LOCAL_RANK"}
    assert (seen["SLURM_JOB_ID"], seen["CUDA_VISIBLE_DEVICES"]) == (str(job.number), "0,1")
    assert task.record("start")["wireup"] == "own"


def test_a_starter_and_a_script_s_get_where_to_meet_and_their_ranks_do_not(job: Job, tmp_path: Path) -> None:
    """On two nodes, each its own place, the same address and port."""
    (tmp_path / "torchrun").write_text('#!/bin/bash\necho "$@" $(env | grep -c "PET_\\|BASH_FUNC")\n')
    (tmp_path / "torchrun").chmod(0o755)
    words = ("torchrun", "--node_rank={index}", "--at={address}:{port}", "a {index}")
    path = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    call = shlex.join(("1", *words[:3]))
    states_all = "torchrun --node_rank=$NODE_RANK --at=$MASTER_ADDR:$MASTER_PORT 'a {index}'"
    ways = (
        ["--fill", "1,2", "--", *words],
        ["--call", call, "--", "bash", "-c", "torchrun 'a {index}'"],
        ["--fill", "0,0", "--", "bash", "-c", states_all],
    )
    for way in ways:
        tasks = [job.start(rank, 2, ["--wireup", "own", "--gpus", "4", *way], **path) for rank in range(2)]
        lines = [task.line() for task in tasks]
        assert statuses(tasks) == [0, 0]
        (first, at, *rest), (second, other_at, *_) = (line.split() for line in lines)
        assert (first, second, at, rest) == ("--node_rank=0", "--node_rank=1", other_at, ["a", "{index}", "0"])
        assert at.startswith("--at=127.0.0.1:")


def test_one_task_jobs_of_a_node_have_ports_of_their_own_and_need_no_name_of_it(job: Job, tmp_path: Path) -> None:
    """A fixed port was the first job's; torchrun's ranks looked for minutes for a name that is nowhere."""
    tell = python("import os; print(os.environ['MASTER_PORT'], os.environ.get('PET_LOCAL_ADDR'), flush=True); input()")
    nameless = ("unshare", "--map-root-user", "--uts", "sh", "-c", 'hostname no-such-name; exec "$@"', "sh")
    for wireup, words in (("torchrun", tell), ("own", ["--gpus", "1", "--fill", "0,0", *tell])):
        line = [*nameless, *command(tmp_path, "--wireup", wireup, *words)]
        both = [subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(2)]
        seen = [each.stdout.readline().split() for each in both if each.stdout is not None]
        assert [each.communicate("\n")[0] for each in both] == ["", ""]
        assert seen[0][0] != seen[1][0]
        assert {address for _port, address in seen} == {"localhost" if wireup == "own" else "None"}


TORCHS = (
    "import os; names = 'GROUP_RANK', 'MASTER_PORT', 'TORCHELASTIC_RUN_ID'; "
    "assert all(map(os.environ.get, names)); assert 'HOROVOD_RANK' not in os.environ"
)


@pytest.mark.parametrize(("wireup", "text"), [("torchrun", TORCHS), ("env", "")])
def test_ranks_that_meet_otherwise(job: Job, wireup: str, text: str) -> None:
    """A torch program finds its place; a program that meets the others itself is left to do so."""
    tasks = job.all(2, ["--wireup", wireup, *python(text)])
    assert [task.end() for task in tasks] == [(0, ""), (0, "")]
    starts = [task.record("start") for task in tasks]
    assert [(each["met"], each["wireup"]) for each in starts] == [(True, wireup)] * 2
    assert wireup != "env" or [each["rendezvous"] for each in starts] == [None, None]
