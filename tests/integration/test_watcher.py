"""NVML by ctypes, on a stand-in library with the real ABI; the watcher of a node, started by a real launcher whose
program marks a window.
"""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from gpu_runner_inside.node import watch
from gpu_runner_inside.node.gpus import Gpus

from tests.support.commands import ran
from tests.support.json_schema import check
from tests.support.launchers import LAUNCH, command, python
from tests.support.packages import fake_nvml
from tests.support.rank_records import document_of
from tests.support.waiting import is_running, until

pytestmark = pytest.mark.integration
MARKS = """
import sys, time
sys.path.insert(0, {lib!r})
from gpu_runner_inside import window
window.mark("begin0")
time.sleep({before})
window.mark("end0")
print(window.mark("begin"), time.monotonic())
time.sleep({seconds})
print(time.monotonic(), window.mark("end"))
"""


def launched(run: Path, program: str, env: dict[str, str] | None = None) -> list[str]:
    """What a program prints below the launcher, which ends well: its words."""
    return ran(command(run, *python(program)), env={"PATH": os.environ["PATH"], **(env or {})}).out.split()


def marks(seconds: float, before: float = 0.3) -> str:
    """A program with a window, and a further one of another arm before it."""
    return MARKS.format(lib=str(LAUNCH.parent / "modules"), seconds=seconds, before=before)


def record(run: Path) -> dict[str, Any]:
    made = document_of(run, "ranks/0.node")
    check(made)
    return made


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], list[str]]:
    """The record of a window of 3.2 s, with two fake GPUs, and what the program printed."""
    place = tmp_path_factory.mktemp("watched")
    said = launched(place / "run", marks(3.2, before=1.3), {"RUNNER_NVML": str(fake_nvml(place))})
    return record(place / "run"), said


def test_the_ends_are_read_just_outside_of_the_window(watched: tuple[dict[str, Any], list[str]]) -> None:
    made, (begun, first_s, last_s, ended) = watched
    assert (begun, ended) == ("True", "True")
    assert made["window_begin"]["monotonic_s"] <= float(first_s) < made["window_begin"]["monotonic_s"] + 5.0
    assert float(last_s) <= made["window_end"]["monotonic_s"] < float(last_s) + 5.0
    assert [port["name"] for port in made["window_begin"]["ports"]] == [
        port["name"] for port in made["window_end"]["ports"]
    ]


def test_gpus_are_sampled_once_a_second_between_them(watched: tuple[dict[str, Any], list[str]]) -> None:
    """Of a further window only the clocks are kept."""
    made = watched[0]
    assert [gpu["uuid"] for gpu in made["gpus"]] == ["GPU-0", "GPU-1"]
    assert 2 <= made["gpus"][0]["samples"] <= 4
    assert made["window_end"]["gpus"][0]["energy_j"] - made["window_begin"]["gpus"][0]["energy_j"] == 250.0
    assert (made["driver"], made["faults"]) == ("550.54.15", [])
    assert [gpu["sm_clock_mhz_mean"] for gpu in made["gpus"]] == made["arms"]["0"] == [1410.0, 1095.0]
    assert made["window_end"]["monotonic_s"] - made["window_begin"]["monotonic_s"] < 4.0
    assert made["watcher_cpu_s"] < 1.0, "start included: what imports and compiles Python is most of it"


def test_a_program_that_marks_no_window_has_a_record_without_ends(tmp_path: Path) -> None:
    launched(tmp_path, "pass")
    made = record(tmp_path)
    assert (made["window_begin"], made["window_end"]) == (None, None)
    assert made["faults"] == ["GPUs: libnvidia-ml.so.1 cannot be loaded"]


def test_a_library_that_crashes_the_watcher_ends_no_run(tmp_path: Path) -> None:
    library = fake_nvml(tmp_path, "int nvmlInit_v2(void) { return *(volatile int *)8; }\n")
    begun, _first_s, _last_s, ended = launched(tmp_path / "run", marks(0.1), {"RUNNER_NVML": str(library)})
    assert (begun, ended) == ("False", "False")
    assert not (tmp_path / "run/ranks/0.node.json").exists()
    assert document_of(tmp_path / "run", "ranks/0.exit")["status"] == 0


def test_a_library_that_hangs_delays_a_run_by_seconds_only(tmp_path: Path) -> None:
    library = fake_nvml(tmp_path, "unsigned sleep(unsigned);\nint nvmlInit_v2(void) { for (;;) sleep(60); }\n")
    began = time.monotonic()
    launched(tmp_path / "run", marks(0.1), {"RUNNER_NVML": str(library)})
    assert time.monotonic() - began < 20.0


IMPATIENT = """
import os, socket, time
time.sleep(0.3)
for which in ("begin", "end"):
    with socket.socket(socket.AF_UNIX) as sock:
        sock.connect("\\0" + os.environ["RUNNER_WATCHER"])
        if which != {answered!r}:
            sock.shutdown(socket.SHUT_RD)
        sock.sendall(which.encode())
        if which == {answered!r}:
            sock.recv(8)
time.sleep(0.5)
"""


@pytest.mark.parametrize(("answered", "begin"), [("begin", True), ("end", False)])
def test_a_mark_whose_program_does_not_wait_for_the_answer_is_none(answered: str, begin: bool, tmp_path: Path) -> None:
    """It was read later than the program takes it for, so that nothing can be compared with it."""
    launched(tmp_path, IMPATIENT.format(answered=answered))
    made = record(tmp_path)
    late = "end" if begin else "begin"
    assert (made["window_begin"] is not None, made["window_end"]) == (begin, None)
    assert f"the window's {late} was read too late to count" in made["faults"]


def test_it_ends_with_a_launcher_that_is_killed(tmp_path: Path) -> None:
    with subprocess.Popen(command(tmp_path, "--", "sleep", "60"), env={"PATH": os.environ["PATH"]}) as launcher:
        listed = Path(f"/proc/{launcher.pid}/task/{launcher.pid}/children")
        until(lambda: len(listed.read_text().split()) == 2, "the watcher and the program", timeout_s=30)
        children = listed.read_text().split()
        launcher.send_signal(signal.SIGKILL)
    until(lambda: not any(map(is_running, map(int, children))), "both have ended", timeout_s=30)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fake_nvml(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def nvml(library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUNNER_NVML", str(library))


@pytest.mark.usefixtures("nvml")
def test_everything_that_the_library_shows_is_read() -> None:
    first, second = Gpus([]).states("/none")
    assert first == {
        "uuid": "GPU-0", "sm_clock_mhz": 1410, "memory_clock_mhz": 1215, "power_w": 312.5, "gpu_celsius": 61,
        "throttle_reasons": 4, "power_limit_w": 400.0, "memory_celsius": 77, "energy_j": first["energy_j"],
        "ecc_corrected": 5, "ecc_uncorrected": 0, "remapped_rows": 3, "remapped_rows_pending": False,
        "pcie_generation": 4, "pcie_width": 16, "nvlinks": [True] * 12,
        "processes_own": 0, "processes_foreign": 0, "processes_invisible": 0,
    }  # fmt: skip
    assert (second["memory_celsius"], second["ecc_corrected"]) == (None, None), "not visible there"
    assert (second["remapped_rows_pending"], second["nvlinks"].count(False)) == (True, 1)


@pytest.mark.usefixtures("nvml")
def test_samples_become_ranges_and_counts_of_reasons(monkeypatch: pytest.MonkeyPatch) -> None:
    watched = Gpus([])
    watched.sample()
    watched.restart()
    watched.sample()
    monkeypatch.setenv("FAKE_NVML_REASONS", "0x24")
    watched.sample()
    first, second = watched.summary()
    assert (first["samples"], first["throttled"], first["throttle_known"]) == (2, {"power cap": 2}, True)
    assert second["throttled"] == {"power cap": 2, "software thermal slowdown": 1}
    assert (second["sm_clock_mhz_min"], second["sm_clock_max_mhz"], second["uuid"]) == (1095, 1410, "GPU-1")
    assert watched.driver == "550.54.15"


@pytest.mark.usefixtures("nvml")
def test_the_load_of_each_gpu_is_left_while_the_job_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the record of the node, before any window; a driver that does not show memory leaves it out."""
    about = {"run_dir": str(tmp_path), "node_rank": 0, "rank": 0, "host": "n0", "token": "t"}
    watched = watch.Watch(about)
    watched.tick()
    assert not (tmp_path / "ranks").exists(), "30 s are not over"
    monkeypatch.setattr(watch, "LOAD_S", 0.0)
    watched.tick()
    first, second = record(tmp_path)["load"]
    assert first == {
        "uuid": "GPU-0", "busy_percent": 97.0, "memory_used_bytes": 31138512896, "memory_bytes": 42949672960,
        "power_w": 312.5,
    }  # fmt: skip
    assert (second["busy_percent"], second["memory_bytes"], second["power_w"]) == (0.0, None, 312.5)


@pytest.mark.usefixtures("nvml")
def test_processes_of_this_run_of_others_and_invisible_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    with subprocess.Popen(["sleep", "60"], env={**os.environ, "RUNNER_RUN_DIR": "/runs/5"}) as process:
        # exec closes the pipe that Popen waits for before /proc shows the new environment.
        until(lambda: b"RUNNER_RUN_DIR=" in Path(f"/proc/{process.pid}/environ").read_bytes())
        monkeypatch.setenv("FAKE_NVML_PID", str(process.pid))
        ours, theirs = (Gpus([]).states(run)[0] for run in ("/runs/5", "/runs/6"))
        process.kill()
    assert (ours["processes_own"], ours["processes_foreign"], ours["processes_invisible"]) == (1, 0, 1)
    assert (theirs["processes_own"], theirs["processes_foreign"]) == (0, 1)


def test_an_xid_is_seen_once(library: Path) -> None:
    program = "from gpu_runner_inside.node.gpus import Gpus; g = Gpus([]); g.sample(); g.sample(); print(g.xids)"
    env = {**os.environ, "RUNNER_NVML": str(library), "FAKE_NVML_XID": "1", "PYTHONPATH": ":".join(sys.path)}
    assert subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, check=True).stdout == b"[79]\n"


NO_FUNCTION = "int nothing;\n"


@pytest.mark.parametrize(
    ("env", "fault"),
    [
        ({"RUNNER_NVML": "/nowhere.so"}, "GPUs: /nowhere.so cannot be loaded"),
        ({"FAKE_NVML_DEAD": "1"}, "GPUs: nvmlInit_v2 gives error 999"),
        ({"RUNNER_NVML": NO_FUNCTION}, "GPUs: nvmlInit_v2 gives no answer"),
    ],
)
@pytest.mark.usefixtures("nvml")
def test_without_the_library_there_are_no_gpus_and_the_reason_is_kept(
    env: dict[str, str], fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in env.items():
        monkeypatch.setenv(name, str(fake_nvml(tmp_path, value)) if value == NO_FUNCTION else value)
    faults: list[str] = []
    watched = Gpus(faults)
    watched.sample()
    assert (watched.states("/none"), watched.summary(), faults) == ([], [], [fault])
