"""The state of a node's processors, from trees of files and from this machine."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from gpu_runner_inside.node import processors


def tree(root: Path, files: dict[str, str]) -> str:
    for path, text in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text + "\n")
    return str(root)


def test_what_the_kernel_shows(tmp_path: Path) -> None:
    root = tree(
        tmp_path,
        {
            "proc/stat": "cpu  100 20 30 1000 5 6 7 8 0 0\ncpu0 1 2 3 4 5 6 7 8 0 0",
            "proc/self/cgroup": "0::/job_5",
            "sys/fs/cgroup/job_5/cpu.stat": "usage_usec 10\nnr_throttled 3\nthrottled_usec 2500000",
            "sys/devices/system/cpu/online": "0-1",
            "sys/devices/system/cpu/cpu0/cpufreq/scaling_cur_freq": "2250000",
            "sys/devices/system/cpu/cpu1/cpufreq/scaling_cur_freq": "3350000",
            "sys/devices/system/cpu/cpu0/thermal_throttle/package_throttle_count": "4",
            "proc/77/stat": "77 (a) b) c) S 1 1 1 0 -1 0 0 0 0 0 200 100 50 50 20 0 1 0 1 1 1",
        },
    )
    tick_s = 0.01
    assert processors.state(root) == pytest.approx(
        {
            "busy_s": 163 * tick_s, "steal_s": 8 * tick_s, "own_s": 400 * tick_s, "throttles": 4,
            "quota_throttled_s": 2.5, "frequency_mhz": 2800.0,
        }
    )  # fmt: skip


def test_what_the_kernel_does_not_show_is_none(tmp_path: Path) -> None:
    state = processors.state(str(tmp_path))
    assert state.pop("own_s") == 0.0
    assert set(state.values()) == {None}


def test_on_this_machine_work_shows_as_own_time(tmp_path: Path) -> None:
    """Of this process alone: what other processes of this user have used goes with them when they end."""
    (tmp_path / "proc").mkdir()
    for name in ("stat", str(os.getpid())):
        (tmp_path / "proc" / name).symlink_to(Path("/proc") / name)
    first = processors.state(str(tmp_path))
    until = time.process_time() + 0.2
    while time.process_time() < until:
        pass
    last = processors.state(str(tmp_path))
    assert last["own_s"] - first["own_s"] > 0.1
    assert last["busy_s"] - first["busy_s"] > 0.1
