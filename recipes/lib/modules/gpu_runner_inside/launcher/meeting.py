"""How the launchers of a job step meet, before any program starts: rank 0 serves, the others find it, all wait for all.

Each waits for a limited time, and a launcher that gives up names the ranks that it waited for.
"""

from __future__ import annotations

import errno
import json
import re
import time
from contextlib import suppress
from typing import Any, Mapping, Optional, Tuple

from gpu_runner_inside.launcher import network, rendezvous, rendezvous_server
from gpu_runner_inside.launcher.wireup import Meeting
from gpu_runner_inside.launcher.world import World

Clock = Tuple[Optional[float], Optional[float]]  # rank 0's wall clock less ours, and how wrong that may be; seconds
_NO_CLOCK: Clock = (None, None)


class MeetingError(Exception):
    """The ranks did not meet.

    Attributes:
        code: ``rendezvous-address``, ``rendezvous-port-taken``, ``rendezvous-timeout`` or ``world-mismatch``.
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


def rendezvous_place(env: Mapping[str, str], here: World, token: str) -> tuple[str, int]:
    """The host and port of rank 0's rendezvous: RUNNER_RDV_HOST and RUNNER_RDV_PORT, or the job's own port.

    Raises:
        MeetingError: ``rendezvous-address``.
    """
    host = env.get("RUNNER_RDV_HOST")
    if not host:
        if here.nodes > 1:
            raise MeetingError(
                "rendezvous-address", "RUNNER_RDV_HOST is not set: the name of the node that rank 0 runs on"
            )
        host = "127.0.0.1"
    text = env.get("RUNNER_RDV_PORT")
    if text:
        if not re.fullmatch(r"\d{1,5}", text) or not 0 < int(text) < 65536:
            raise MeetingError("rendezvous-address", f"RUNNER_RDV_PORT is no port number: {text!r}")
        return host, int(text)
    job = re.match(r"\d+", env.get("SLURM_JOB_ID") or env.get("PBS_JOBID") or "")
    number = int(job.group(0)) if job else int(token, 16)
    return host, network.FIRST_PORT + number % network.PORTS


def patience_s(env: Mapping[str, str], otherwise_s: float) -> float:
    """Seconds to wait for the other ranks: RUNNER_RDV_TIMEOUT_S, or ``otherwise_s``.

    Raises:
        MeetingError: ``rendezvous-timeout``, where the variable is no number.
    """
    text = env.get("RUNNER_RDV_TIMEOUT_S")
    if not text:
        return otherwise_s
    if not re.fullmatch(r"\d{1,9}(\.\d*)?", text):
        raise MeetingError("rendezvous-timeout", f"RUNNER_RDV_TIMEOUT_S is no number of seconds: {text!r}")
    return float(text)


def serve(host: str, port: int, token: str, size: int) -> None:
    """On rank 0: start the server in a child process, on the first port of the candidates that is free.

    Raises:
        MeetingError: ``rendezvous-address`` or ``rendezvous-port-taken``.
    """
    address = _resolve(host)
    ports = network.candidates(port, token)
    for place, candidate in enumerate(ports):
        try:
            sock = rendezvous_server.listen(address, candidate)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                continue
            raise MeetingError(
                "rendezvous-address",
                f"cannot listen on {address}:{candidate} (for host {host!r}): {error.strerror}; "
                "the rendezvous host must be the node that rank 0 runs on",
            ) from error
        master_port = network.free_port(address, [*ports[place + 1 :], 0])
        rendezvous_server.start(sock, token, size, {"master_port": master_port})
        return
    taken = ", ".join(map(str, ports))
    raise MeetingError("rendezvous-port-taken", f"every port of {taken} is taken on {address} ({host})")


def join(world: World, host: str, port: int, token: str, timeout_s: float) -> Meeting:
    """Find this job step's server, tell it that this rank has come, and wait until every rank has.

    Raises:
        MeetingError: ``rendezvous-address``, ``rendezvous-timeout`` or ``world-mismatch``.
    """
    until = time.monotonic() + timeout_s
    address = _resolve(host)
    found, welcome, clock = _find(address, network.candidates(port, token), token, host, timeout_s, until)
    if welcome["size"] != world.size:
        raise MeetingError(
            "world-mismatch", f"rank 0 knows a world of {welcome['size']}, this task one of {world.size}"
        )
    store = rendezvous.Store(address, found, token)
    try:
        store.put("lobby", str(world.rank), b"", max(until - time.monotonic(), rendezvous.ROUND_TRIP_S))
        if store.get("lobby", "everyone", until - time.monotonic()) is None:
            raise MeetingError(
                "rendezvous-timeout",
                f"waited {timeout_s:g} s for {_missing(store)} of {world.size}: not started, or died before",
            )
    except OSError as error:
        raise MeetingError(
            "rendezvous-timeout", f"the rendezvous of rank 0 at {address}:{found} is gone: {error}"
        ) from error
    source = network.source_address(address)
    interface = network.interface_of(source) if source else None
    return Meeting(address, found, token, interface, welcome["master_port"], *clock)


def linger(meeting: Meeting, size: int, grace_s: float = 5.0) -> dict[str, Any]:
    """On rank 0, before it ends and the server with it: wait until every launcher has been notified to start.

    Returns:
        What the server said last; empty if it said nothing.
    """
    last: dict[str, Any] = {}
    until = time.monotonic() + grace_s
    with suppress(PermissionError):  # this job's server has ended, and another job's is in its place
        while time.monotonic() < until:
            present, _clock = _ask_present(meeting.address, meeting.port, meeting.token, until - time.monotonic())
            last = present or last
            if present is None or present["notified"] >= size:
                break
            time.sleep(0.05)
    return last


def _find(
    address: str, ports: list[int], token: str, host: str, timeout_s: float, until: float
) -> tuple[int, dict[str, Any], Clock]:
    pause_s = 0.05
    foreign: set[int] = set()
    while True:
        for port in ports:
            # Another service that accepts and never answers must leave time for the other ports.
            left_s = until - time.monotonic()
            try:
                present, clock = _ask_present(address, port, token, min(max(left_s / len(ports), 1.0), left_s, 5.0))
            except PermissionError:
                foreign.add(port)
                continue
            if present is not None:
                return port, present, clock
        if time.monotonic() >= until:
            why = "not started, died before, or not reachable"
            if foreign:
                others = ", ".join(map(str, sorted(foreign)))
                why = f"on port {others} another job's answers, which refuses this task's token"
            raise MeetingError(
                "rendezvous-timeout",
                f"waited {timeout_s:g} s for rank 0 to serve the rendezvous on {host} ({address}), "
                f"port {', '.join(map(str, ports))}: {why}",
            )
        time.sleep(pause_s)
        pause_s = min(pause_s * 1.5, 1.0)


def _ask_present(address: str, port: int, token: str, timeout_s: float) -> tuple[dict[str, Any] | None, Clock]:
    """What our server says at once, or None where none answers within this time; and rank 0's clock against ours.

    Raises:
        PermissionError: another job's rendezvous answers, and refuses the token.
    """
    if timeout_s <= 0:
        return None, _NO_CLOCK
    asked_s, began = time.time(), time.monotonic()
    try:
        present = json.loads(rendezvous.present(address, port, token, timeout_s))
    except rendezvous.NotOursError as error:
        if error.status == 403:
            raise PermissionError(f"the rendezvous at {address}:{port} is another job's") from error
        return None, _NO_CLOCK
    except OSError:
        return None, _NO_CLOCK
    round_trip_s = time.monotonic() - began
    return present, (present["time_s"] - asked_s - round_trip_s / 2, round_trip_s / 2)


def _missing(store: rendezvous.Store) -> str:
    """The ranks that are not there, for people."""
    body = store.get("lobby", "missing", 0.0)
    missing: dict[str, Any] = json.loads(body) if body else {"count": 0, "first": []}
    count, first = missing["count"], missing["first"]
    if count == 0:
        return "ranks (all came at the last moment)"
    shown = ", ".join(map(str, first)) + (f" and {count - len(first)} more" if count > len(first) else "")
    return ("rank " if count == 1 else "ranks ") + shown


def _resolve(host: str) -> str:
    try:
        return network.resolve(host)
    except OSError as error:
        raise MeetingError("rendezvous-address", f"the rendezvous host {host!r} does not resolve: {error}") from error
