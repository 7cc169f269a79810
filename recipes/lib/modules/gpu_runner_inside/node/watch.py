"""The watcher: reads counters, GPUs and processors at both ends of the window and once a second; leaves one record.

``ranks/N.node.json`` (schema.json, ``node``) is written at the end of the window and again when the launcher closes the
watcher's standard input, which ends it. A reading that fails is named in ``faults``; nothing that it meets ends it.
Where there are GPUs, it is written every 30 s, too, with their load meanwhile, for who looks while the job runs.
"""

from __future__ import annotations

import json
import os
import re
import resource
import select
import signal
import socket
import sys
import time
from contextlib import suppress
from typing import Any

from gpu_runner_inside import records
from gpu_runner_inside.node import counters, gpus, processors

INTERVAL_S = 1.0
LOAD_S = 30.0
_MARK = re.compile(r"(begin|end)(\d?)\Z", re.ASCII)
_QUIET = 3  # the first intervals: the program still imports its framework


class Watch:
    """What has been read so far. ``about``: run_dir, node_rank, rank, host, token."""

    def __init__(self, about: dict[str, Any]) -> None:
        self._about = about
        self._faults: list[str] = []
        self._gpus = gpus.Gpus(self._faults)
        self._quiet = [self._moment()]
        self._began: dict[str, Any] | None = None
        self._ended: dict[str, Any] | None = None
        self._samples = 0
        self._frequencies: list[float] = []
        self._load: list[dict[str, Any]] = []
        self._load_s = time.monotonic()

    def tick(self) -> None:
        """Once a second."""
        if len(self._quiet) <= _QUIET and self._began is None:
            self._quiet.append(self._moment())
        self._gpus.sample_arm()
        self._gpus.sample_load()
        if time.monotonic() - self._load_s >= LOAD_S:
            self._load_s, self._load = time.monotonic(), self._gpus.load()
            if self._load:
                self.write()
        if self._ended is None:
            self._samples += 1
            self._gpus.sample()
            frequency = processors.frequency_mhz()
            if frequency is not None:
                self._frequencies.append(frequency)

    def mark(self, which: str) -> None:
        """An end of the window. Counters are read next to it; a new begin starts anew. Of further windows, which have
        numbers, only the GPUs' clocks are kept.
        """
        if which[-1:].isdigit():
            self._gpus.of_arm(which[-1] if which.startswith("begin") else "")
        elif which == "begin":
            state = self._states()
            self._gpus.restart()
            self._samples, self._frequencies, self._ended = 0, [], None
            self._began = dict(state, **self._moment())
        elif which == "end" and self._began is not None:
            moment = self._moment()
            self._ended = dict(self._states(), **moment)

    def drop(self, which: str) -> None:
        """A mark whose program did not wait for its answer any more was read too late: it is none."""
        if which[-1:].isdigit():
            self._gpus.of_arm("")
            return
        if which == "begin":
            self._began = None
        self._ended = None
        _note(self._faults, f"the window's {which} was read too late to count")

    def write(self) -> None:
        """Leave the record; a disk that is full or gone leaves none."""
        used = resource.getrusage(resource.RUSAGE_SELF)
        fields = {name: self._about[name] for name in ("node_rank", "rank", "host", "token")}
        fields.update(
            boot_id=_boot_id(),
            time_s=time.time(),
            interval_s=INTERVAL_S,
            quiet=self._quiet,
            window_begin=self._began,
            window_end=self._ended,
            samples=self._samples,
            frequency_mhz_min=min(self._frequencies) if self._frequencies else None,
            frequency_mhz_max=max(self._frequencies) if self._frequencies else None,
            gpus=self._gpus.summary(),
            load=self._load,
            arms=self._gpus.arm_clocks(),
            driver=self._gpus.driver,
            xids=self._gpus.xids,
            watcher_cpu_s=used.ru_utime + used.ru_stime,
            faults=self._faults,
        )
        with suppress(OSError):
            records.write(records.rank_record(self._about["run_dir"], self._about["rank"], "node"), "node", fields)

    def _moment(self) -> dict[str, Any]:
        return {"monotonic_s": time.monotonic(), "ports": _ports(self._faults)}

    def _states(self) -> dict[str, Any]:
        return {
            "gpus": self._gpus.states(self._about["run_dir"]),
            "processors": _processors(self._about["token"], self._faults),
        }


def main(about: str) -> None:
    """``about``: JSON with ``fd``, the listening socket, and what Watch needs."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)  # Slurm signals every process of a step; the launcher's end ends us
    given = json.loads(about)
    watch = Watch(given)
    with socket.socket(fileno=given["fd"]) as listener:
        _until_closed(watch, listener)
    watch.write()


def _until_closed(watch: Watch, listener: socket.socket) -> None:
    """Serve marks and ticks until standard input ends."""
    next_s = time.monotonic() + INTERVAL_S
    while True:
        ready = select.select([sys.stdin.fileno(), listener], [], [], max(0.0, next_s - time.monotonic()))[0]
        if listener in ready:
            _serve(watch, listener)
        elif ready:
            return
        if time.monotonic() >= next_s:
            watch.tick()
            next_s = max(next_s + INTERVAL_S, time.monotonic())


def _serve(watch: Watch, listener: socket.socket) -> None:
    """One mark of a process of this user: read, then answer; the record comes after the answer."""
    with suppress(OSError):
        connection, _address = listener.accept()
        with connection:
            connection.settimeout(1.0)
            peer = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)  # pid, uid, gid: unix(7)
            if int.from_bytes(peer[4:8], sys.byteorder) != os.getuid():
                return  # who says nothing would hold up the others
            which = connection.recv(8).decode("ascii", "replace")
            if _MARK.match(which) is None:
                return
            watch.mark(which)
            try:
                connection.sendall(b"done")
            except OSError:
                watch.drop(which)
        if which == "end":
            watch.write()


def _ports(faults: list[str]) -> list[dict[str, Any]]:
    try:
        return counters.read()
    except Exception as error:  # a kernel that shows something new must not end the watch
        _note(faults, f"counters of ports: {error!r}")
        return []


def _processors(token: str, faults: list[str]) -> dict[str, Any]:
    try:
        return processors.state(token=token)
    except Exception as error:
        _note(faults, f"processors: {error!r}")
        return {}


def _note(faults: list[str], text: str) -> None:
    if text not in faults and len(faults) < 20:
        faults.append(text)


def _boot_id() -> str | None:
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return None
