"""The processors of this node: frequency, load by others, throttling. ``root`` is ``/`` but in tests.

Sources: proc(5) (``/proc/stat``, ``/proc/PID/stat``); the kernel's ``cpufreq/scaling_cur_freq`` and
``thermal_throttle/*_throttle_count`` of each processor; cgroup v2's
``cpu.stat``. What the kernel does not show is None.
"""

from __future__ import annotations

import os
import re
from typing import Any

from gpu_runner_inside.launcher.binding import parse

_SAMPLED = 4  # processors whose frequency is read each second: a reading may interrupt the processor


def state(root: str = "/", token: str = "") -> dict[str, Any]:
    """Totals since boot, to be compared with another reading. O(processes + processors).

    ``busy_s``: processor seconds of everything; ``own_s``: of the job step's visible processes, as ``own_seconds``;
    ``steal_s``: taken by the hypervisor; ``throttles``: events on all packages; ``quota_throttled_s``: this cgroup was
    kept from running by its CPU limit.
    """
    tick_s = 1.0 / os.sysconf("SC_CLK_TCK")
    times = [int(number) for number in _text(root, "proc/stat").partition("\n")[0].split()[1:]]
    known = len(times) >= 8  # user nice system idle iowait irq softirq steal
    throttles = [_number(root, f"{cpu}/thermal_throttle/package_throttle_count") for cpu in _cpus(root)]
    counted = [count for count in throttles if count is not None]
    quota = re.search(r"^throttled_usec (\d+)", _cgroup(root), re.MULTILINE)
    return {
        "busy_s": (sum(times[:3]) + sum(times[5:7])) * tick_s if known else None,
        "steal_s": times[7] * tick_s if known else None,
        "own_s": own_seconds(root, token),
        "throttles": sum(counted) if counted else None,
        "quota_throttled_s": int(quota.group(1)) * 1e-6 if quota else None,
        "frequency_mhz": frequency_mhz(root),
    }


def frequency_mhz(root: str = "/") -> float | None:
    """The mean of a few processors now; None where the kernel does not show it."""
    cpus = _cpus(root)
    step = max(1, len(cpus) // _SAMPLED)
    khz = [_number(root, f"{cpu}/cpufreq/scaling_cur_freq") for cpu in cpus[::step][:_SAMPLED]]
    shown = [each / 1000.0 for each in khz if each is not None]
    if not shown:
        text = _text(root, "proc/cpuinfo")
        shown = [float(value) for value in re.findall(r"^cpu MHz\s*: ([0-9.]+)", text, re.MULTILINE)]
    return sum(shown) / len(shown) if shown else None


def own_seconds(root: str = "/", token: str = "") -> float:
    """Processor seconds of the visible processes of this user that have the step's RUNNER_TOKEN in their environment,
    or descend from one; and of their children that have ended. Without a token of all that this user has.
    """
    tick_s, me = 1.0 / os.sysconf("SC_CLK_TCK"), os.getuid()
    marked = b"\0RUNNER_TOKEN=" + os.fsencode(token) + b"\0"
    ticks: dict[str, int] = {}
    parents: dict[str, str] = {}
    own: set[str] = set()
    for pid in _listed(os.path.join(root, "proc")):
        if not pid.isdigit():
            continue
        try:
            if os.stat(os.path.join(root, "proc", pid)).st_uid != me:
                continue
        except OSError:
            continue
        # The name in parentheses may hold anything; utime stime cutime cstime are fields 14 to 17.
        fields = _text(root, f"proc/{pid}/stat").rpartition(")")[2].split()
        if len(fields) > 15:
            ticks[pid], parents[pid] = sum(int(field) for field in fields[11:15]), fields[1]
            if not token or marked in b"\0" + _environment(root, pid):
                own.add(pid)
    before = -1
    while before != len(own):
        before = len(own)
        own |= {pid for pid, parent in parents.items() if parent in own}
    return sum(ticks[pid] for pid in own) * tick_s


def _environment(root: str, pid: str) -> bytes:
    try:
        with open(os.path.join(root, "proc", pid, "environ"), "rb") as file:
            return file.read()
    except OSError:
        return b""


def _cpus(root: str) -> list[str]:
    online = parse(_text(root, "sys/devices/system/cpu/online"))
    return [f"sys/devices/system/cpu/cpu{cpu}" for cpu in sorted(online)]


def _cgroup(root: str) -> str:
    """``cpu.stat`` of this process's own cgroup (v2), or of the container's root."""
    match = re.search(r"^0::(/.*)$", _text(root, "proc/self/cgroup"), re.MULTILINE)
    own = "sys/fs/cgroup" + (match.group(1) if match else "")
    return _text(root, own + "/cpu.stat") or _text(root, "sys/fs/cgroup/cpu.stat")


def _number(root: str, path: str) -> int | None:
    text = _text(root, path).strip()
    return int(text) if text.isdigit() else None


def _listed(directory: str) -> list[str]:
    try:
        return os.listdir(directory)
    except OSError:
        return []


def _text(root: str, path: str) -> str:
    try:
        with open(os.path.join(root, path), encoding="ascii", errors="replace") as file:
            return file.read()
    except (OSError, ValueError):
        return ""
