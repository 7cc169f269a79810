"""Counters of a fabric's ports and the state of a node's processors, from files as the kernel lays them out."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest
from gpu_runner_inside.node import counters, processors

RECORDED = Path(__file__).parent / "recorded"


def tree(name: str, root: Path) -> Path:
    """The recorded tree as files below ``root``."""
    for line in (RECORDED / f"{name}.txt").read_text().splitlines():
        path, tab, content = line.partition("\t")
        if tab:
            file = root / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(content.replace("\\n", "\n") + "\n")
    return root


def read(name: str, root: Path) -> dict[str, dict[str, Any]]:
    return {port["name"]: port for port in counters.read(str(tree(name, root)))}


def test_infiniband_counts_words_of_four_bytes_and_the_fastest_ports_are_the_ranks(tmp_path: Path) -> None:
    ports = read("infiniband", tmp_path)
    assert ports["mlx5_0:1"] == {
        "name": "mlx5_0:1", "kind": "infiniband", "active": True, "gbit_s": 200.0, "for_ranks": True, "virtual": False,
        "sent_bytes": 1_000_000_000, "received_bytes": 1_040_000_000,
        "ip_sent_bytes": 10_000_000, "ip_received_bytes": 40_000_000, "wait_ticks": 1234,
        "errors": {"symbol_error": 0, "link_downed": 1, "port_rcv_errors": 0, "out_of_sequence": 0},
    }  # fmt: skip
    assert {name for name, port in ports.items() if port["for_ranks"]} == {"mlx5_0:1", "mlx5_1:1", "eth0"}
    assert (ports["mlx5_5:1"]["active"], ports["mlx5_5:1"]["sent_bytes"]) == (False, None)


def test_roce_is_read_from_the_adapter_and_not_from_its_interface(tmp_path: Path) -> None:
    ports = read("roce", tmp_path)
    bond = ports["mlx5_bond_0:1"]
    assert (bond["kind"], bond["sent_bytes"], bond["received_bytes"]) == ("roce", 28_000, 36_000)
    assert (bond["ip_sent_bytes"], bond["ip_received_bytes"]) == (0, 0)
    assert bond["errors"] == {"out_of_sequence": 3, "local_ack_timeout_err": 1}
    assert (ports["mlx5_2:1"]["virtual"], ports["mlx5_2:1"]["sent_bytes"]) == (True, None)
    assert ports["bond0"]["sent_bytes"] == 654321


def test_slingshot_telemetry_holds_a_value_and_its_time(tmp_path: Path) -> None:
    ports = read("cxi", tmp_path)
    assert ports["cxi0"] == {
        "name": "cxi0", "kind": "cxi", "active": True, "gbit_s": 200.0, "for_ranks": True, "virtual": False,
        "sent_bytes": 5_000_000_000, "received_bytes": 6_000_000_000,
        "ip_sent_bytes": 2000, "ip_received_bytes": 1000, "wait_ticks": None, "errors": {},
    }  # fmt: skip
    assert ports["cxi1"]["sent_bytes"] is None


def test_efa_counts_each_operation_and_no_byte_twice(tmp_path: Path) -> None:
    ports = read("efa", tmp_path)
    assert ports["rdmap16s27:1"] == {
        "name": "rdmap16s27:1", "kind": "efa", "active": True, "gbit_s": 100.0, "for_ranks": True, "virtual": False,
        "sent_bytes": 7450, "received_bytes": 9000, "ip_sent_bytes": 0, "ip_received_bytes": 0, "wait_ticks": None,
        "errors": {"rx_drops": 2},
    }  # fmt: skip
    older = ports["rdmap32s27:1"]
    assert (older["kind"], older["sent_bytes"], older["received_bytes"]) == ("efa", 1000, None)
    assert ports["rdmap64s27:1"]["virtual"] is True, "a virtual function that a virtual machine was given"


def test_this_machines_own_counters_can_be_read() -> None:
    assert all(isinstance(port["sent_bytes"], int) for port in counters.read() if port["kind"] == "interface")


@pytest.mark.parametrize("text", ["", "garbage", "eth0: 1 2\n", "\xff\x00: x\n"])
def test_files_that_say_something_else_are_passed_over(text: str, tmp_path: Path) -> None:
    (tmp_path / "proc/net").mkdir(parents=True)
    (tmp_path / "proc/net/dev").write_text(text)
    assert counters.read(str(tmp_path)) == []


def files(root: Path, files: dict[str, str]) -> str:
    for path, text in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text + "\n")
    return str(root)


def test_what_the_kernel_shows(tmp_path: Path) -> None:
    root = files(
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
            "proc/77/environ": "A=1\0RUNNER_TOKEN=t\0",
            "proc/78/stat": "78 (its child) S 77 1 1 0 -1 0 0 0 0 0 60 0 0 0 20 0 1 0 1 1 1",
            "proc/79/stat": "79 (another job) S 1 1 1 0 -1 0 0 0 0 0 900 0 0 0 20 0 1 0 1 1 1",
            "proc/79/environ": "RUNNER_TOKEN=tt\0",
        },
    )
    tick_s = 0.01
    assert processors.own_seconds(root) == pytest.approx(1360 * tick_s)
    assert processors.state(root, "t") == pytest.approx(
        {
            "busy_s": 163 * tick_s, "steal_s": 8 * tick_s, "own_s": 460 * tick_s, "throttles": 4,
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
