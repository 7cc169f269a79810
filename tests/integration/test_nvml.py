"""NVML by ctypes, on a stand-in library with the real ABI, compiled here."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from gpu_runner_inside.node.gpus import Gpus

from tests.support.packages import fake_nvml
from tests.support.waiting import until

pytestmark = pytest.mark.integration


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


@pytest.mark.parametrize(
    ("env", "fault"),
    [
        ({"RUNNER_NVML": "/nowhere.so"}, "GPUs: /nowhere.so cannot be loaded"),
        ({"FAKE_NVML_DEAD": "1"}, "GPUs: nvmlInit_v2 gives error 999"),
    ],
)
@pytest.mark.usefixtures("nvml")
def test_without_the_library_there_are_no_gpus_and_the_reason_is_kept(
    env: dict[str, str], fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    faults: list[str] = []
    watched = Gpus(faults)
    watched.sample()
    assert (watched.states("/none"), watched.summary(), faults) == ([], [], [fault])


def test_a_library_that_lacks_every_function_is_a_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUNNER_NVML", str(fake_nvml(tmp_path, "int nothing;\n")))
    faults: list[str] = []
    Gpus(faults)
    assert faults == ["GPUs: nvmlInit_v2 gives no answer"]
