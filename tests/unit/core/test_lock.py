"""One holder at a time, on any file system; who is waited for is said; the dead hold nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from runner.core import lock, process_identity
from runner.core.errors import InfrastructureError, UnknownStateError
from runner.core.lock import leased
from tests.support.waiting import until

Hold = Callable[..., AbstractContextManager[None]]


@pytest.mark.parametrize(
    ("hold", "name", "says"),
    [(lock.locked, "lock", "waiting for another"),
     (leased, "lock", f"waiting for process {os.getpid()} on {os.uname().nodename}, which started the same 0 s ago")],
    ids=["a file", "a lease"],
)  # fmt: skip
def test_the_holder_that_is_waited_for_is_named_and_the_wait_ends(
    tmp_path: Path, hold: Hold, name: str, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lock, "_SILENT_S", 0.0)
    path = tmp_path / name
    said: list[str] = []
    with hold(path, said.append):
        assert said == []
        with pytest.raises(UnknownStateError, match=r"process.* held this lock") as caught:
            hold(path, said.append, limit_s=0.3).__enter__()
    assert len(said) == 1
    assert said[0].startswith(says)
    assert str(path) in said[0]
    assert (caught.value.code, caught.value.where) == (9, str(path))
    with hold(path, said.append, limit_s=0):
        assert path.exists()
    assert path.exists() == (hold == lock.locked)


def test_a_waiter_locks_the_next_file_where_the_holder_removed_its_own(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with ThreadPoolExecutor(1) as pool:

        def wait() -> bool:
            with lock.locked(path, print):
                return path.exists()

        with lock.locked(path, print):
            waiting = pool.submit(wait)
            time.sleep(0.3)
            assert not waiting.done()
            path.unlink()
        assert waiting.result(10)


# A process that says when it holds the lock, and then waits for its end.
HOLDER = """
import sys, time
from pathlib import Path
from runner.core.lock import leased
with leased(Path(sys.argv[1]), lambda text: print(text, file=sys.stderr)):
    print("held", flush=True)
    time.sleep(float(sys.argv[2]))
"""
# Counts up a file without any care, many times: only exclusion keeps the sum right.
COUNTER = """
import sys, time
from pathlib import Path
from runner.core.lock import leased
lock, sum = Path(sys.argv[1]), Path(sys.argv[2])
for _ in range(5):
    with leased(lock, print):
        seen = int(sum.read_text())
        time.sleep(0.005)
        sum.write_text(str(seen + 1))
"""
NO_FLOCK = "import fcntl\nfcntl.flock = fcntl.lockf = lambda *words: None\n"
ELSEWHERE = "elsewhere.0123456789ab.1.7.7.00000000"


def link(path: Path) -> None:
    path.symlink_to("nowhere")


def full_directory(path: Path) -> None:
    (path / "x").mkdir(parents=True)


def blocked_for_the_user(path: Path) -> None:
    for name in (path, path.with_name(f"{path.name}.{os.geteuid()}")):
        full_directory(name)


PLANTED: list[Callable[[Path], object]] = [
    Path.touch, lambda path: path.write_text("[" * 4096), os.mkfifo, link, Path.mkdir, full_directory,
    blocked_for_the_user,
]  # fmt: skip


@pytest.mark.parametrize("plant", PLANTED)
def test_what_names_no_holder_blocks_no_one(
    tmp_path: Path, plant: Callable[[Path], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever can write to a shared store can put it there; a killed process may have, where a disk has no links."""
    plant(tmp_path / "lock")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(UnknownStateError, match="unknown process"), leased(tmp_path / "lock", print, limit_s=0.3):
        pass
    monkeypatch.setattr(lock, "_SILENT_S", 0.2)
    with leased(tmp_path / "lock", print, limit_s=5):
        pass
    assert set(tmp_path.rglob("*")) <= set(before)


def process(program: str, *words: object, env: dict[str, str] | None = None) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", program, *map(str, words)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, **(env or {})},
    )  # fmt: skip


def test_many_processes_hold_it_one_at_a_time_where_flock_does_nothing(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(NO_FLOCK)
    counted = tmp_path / "sum"
    counted.write_text("0")
    env = {"PYTHONPATH": f"{tmp_path}:{Path(__file__).parents[3]}"}
    counters = [process(COUNTER, tmp_path / "lock", counted, env=env) for _ in range(4)]
    assert [child.wait(120) for child in counters] == [0] * 4
    assert counted.read_text() == "20"
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_file()) == ["sitecustomize.py", "sum"]


def test_a_dead_holder_is_known_at_once_and_one_of_many_who_find_it_gets_the_lock(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with process(HOLDER, path, 60) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "held\n"
        child.send_signal(signal.SIGKILL)
    lease = path.read_text()
    holding = []

    def hold(_number: int) -> int:
        with leased(path, print):
            holding.append(1)
            most = len(holding)
            time.sleep(0.01)
            holding.pop()
            return most

    began = time.monotonic()
    for _ in range(4):
        path.write_text(lease)
        with ThreadPoolExecutor(8) as pool:
            assert list(pool.map(hold, range(8))) == [1] * 8
    assert time.monotonic() - began < 20, "PATIENCE_S is longer"
    assert list(tmp_path.iterdir()) == []


def test_a_number_that_was_given_out_again_is_another_process(monkeypatch: pytest.MonkeyPatch) -> None:
    own = process_identity.mark()
    table, pid, start = own.rsplit(".", 2)
    marks = (own, f"{table}.{pid}.{int(start) + 1}", f"{table}x.{pid}.{start}", "", "anything")
    assert [process_identity.state(mark) for mark in marks] == ["alive", "dead", *["elsewhere"] * 3]

    def denied(_pid: int, _number: int) -> None:
        raise PermissionError

    # /proc mounted with hidepid, as on many login nodes: others' processes are not there, but kill(2) knows them.
    monkeypatch.setattr(process_identity, "_start", lambda _: None)
    monkeypatch.setattr(os, "kill", denied)
    assert process_identity.state(own) == "elsewhere"


def test_a_holder_elsewhere_keeps_it_while_its_heart_beats(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its clock may say anything: only whether the time of its file changes counts."""
    monkeypatch.setattr(lock, "PATIENCE_S", 1.0)
    path = tmp_path / "lock"
    path.write_text(f'{{"owner": "{ELSEWHERE}", "since_s": 1}}')
    with ThreadPoolExecutor(1) as pool:

        def beat() -> None:
            for number in range(13):
                os.utime(path, (number, number))
                time.sleep(0.1)

        beating = pool.submit(beat)
        began = time.monotonic()
        with leased(path, print):
            taken_s = time.monotonic() - began
        assert beating.exception() is None
    assert 2 < taken_s < 10


def test_the_heart_beats(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock, "HEARTBEAT_S", 0.02)
    path = tmp_path / "lock"
    with leased(path, print):
        os.utime(path, (1, 1))
        until(lambda: path.stat().st_mtime > 1, "the heart has beaten", timeout_s=10, every_s=0.01)


def test_a_lock_that_became_anothers_is_not_given_back(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with leased(path, print):
        path.unlink()
        path.write_text(f'{{"owner": "{ELSEWHERE}", "since_s": 1}}')
    assert ELSEWHERE in path.read_text()


@pytest.mark.parametrize(
    ("place", "hold", "fix"),
    [("no/lock", leased, "RUNNER_STORE"), ("file/lock", leased, "RUNNER_STORE"), ("no/lock", lock.locked, "lock in")],
)
def test_what_cannot_be_locked_is_reported(tmp_path: Path, place: str, hold: Hold, fix: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InfrastructureError, match="cannot lock") as caught, hold(tmp_path / place, print):
        pass
    assert fix in caught.value.fix


def test_an_interrupt_while_the_lock_is_made_leaves_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_handle: int) -> None:
        assert not (tmp_path / "lock").exists(), "others see it with its holder in it, or not at all"
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupted)
    with pytest.raises(KeyboardInterrupt), leased(tmp_path / "lock", print):
        pass
    assert list(tmp_path.iterdir()) == []


def test_an_old_number_of_links_hides_no_lease(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.fstat
    monkeypatch.setattr(os, "fstat", lambda handle: os.stat_result((*real(handle)[:3], 1, *real(handle)[4:])))
    handle = lock._create(tmp_path / "claim", "mark")
    assert handle is not None
    os.close(handle)
    assert lock._create(tmp_path / "claim", "other") is None
