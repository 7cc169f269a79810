"""What ``serve`` serves from a node of a job: its program there, and the way of a person's browser to it."""

from __future__ import annotations

import os
import shlex
import socket
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Literal

import msgspec

from runner.core import files, ownership, paths, process
from runner.core.errors import UsageError
from runner.jobs.directory import Run
from runner.model.backends import SCHEDULERS
from runner.model.request import Request
from runner.model.site import Site
from runner.sites.user import login_name

Kind = Literal["notebook", "tensorboard", "command"]
# How a tunnel gets to the server: it is on this machine; by ssh to its node; or by TCP from the login node.
Reach = Literal["here", "ssh", "tcp"]
TOKEN, PLACE, _SOCKET = "serve/token", "serve/place.json", "serve/socket"  # see serve.py of gpu_runner_inside
_LONGEST_PATH = 107 - len("/20261127-160000--1.99/")  # bytes of a Unix socket's (unix(7)), but for the run directory's
# Of the person's machine, where others may listen, too: at this address alone, and no tunnel means no page.
_LOCAL = "127.0.0.1:8888"
_OR_FAIL = ("-o", "ExitOnForwardFailure=yes")
_ANSWERS_S = 20.0


def program_inside(module: str) -> tuple[str, ...]:
    """What runs one of our modules as the program of a job. Python does not look in the directory where it starts: what
    lies there may be another user's.
    """
    places = "import os, sys; sys.path[:] = [os.environ['RUNNER_LIB'], *filter(None, sys.path)]"
    return "python3", "-c", f"{places}; from gpu_runner_inside.{module} import main; main()"


class Place(msgspec.Struct, frozen=True):
    """Where a server listens that has answered. ``port``: 0 for the socket. ``status``: of an answer without token."""

    host: str
    port: int
    status: int


def reach_of(site: Site) -> Reach:
    """Where it is unknown whether ssh reaches the nodes, nothing depends on it."""
    nodes = SCHEDULERS[site.scheduler].nodes
    return "here" if nodes == "this-machine" else "ssh" if nodes == "listed" or site.ssh_to_nodes else "tcp"


def program_of(kind: Kind, words: Sequence[str], request: Request, site: Site, *, idle_s: float) -> tuple[str, ...]:
    """The program of the job. Raises UsageError: the command takes neither a port nor a socket, or a socket that
    cannot be reached; kernels would start where others write.
    """
    reach, text, why_not = reach_of(site), " ".join(words), ""
    if kind == "notebook":
        check_kernels(Path(request.directory))
    if reach == "tcp":
        why_not = f"the site {site.name} does not say `ssh_to_nodes: true`, and a login node reaches ports alone"
    elif len(os.fsencode(f"{Path(request.runs).absolute()}{request.job_name}{_SOCKET}")) > _LONGEST_PATH:
        why_not = "its path is too long for one"
    if kind == "command" and ("{port}" in text) == ("{socket}" in text):
        fix = "-- python -m http.server --bind {address} {port}"
        raise UsageError("the command listens at {port}, or at {socket}: one of them", where=text or "serve", fix=fix)
    if "{socket}" in text and why_not:
        fix = "let it listen at {port} of {address}" if reach == "tcp" else "name a shorter directory: --runs DIR"
        raise UsageError(f"no tunnel reaches a socket: {why_not}", where="{socket}", fix=fix)
    takes_socket = "{socket}" in text or (kind == "notebook" and not why_not)
    way = "socket" if takes_socket else "address" if reach == "tcp" else "loopback"
    return (*program_inside("serve"), way, f"{idle_s:g}", kind, *words)


def check_kernels(directory: Path) -> None:
    """Raises UsageError: what kernels import would be of others."""
    whose, is_open = ownership.exchangeable_by(directory, used=True), ownership.is_open(directory)
    if whose or is_open:
        what = f"kernels would run modules of others there ({whose or 'all may write to it'})"
        fix = f"start it in a directory of your own; {ownership.way_out(directory, whose)}"
        if is_open:
            fix = ownership.closing(directory)
        raise UsageError(what, where=str(directory), fix=fix)


def directions(run: Run, place: Place, reach: Reach, kind: Kind, token: str) -> tuple[str, str]:
    """The command of the tunnel on a person's machine, and what to open in the browser there."""
    hops = ("-J", login(), f"{login_name()}@{_node(run)}") if reach == "ssh" else (login(),)
    tunnel = shlex.join(("ssh", "-N", *_OR_FAIL, "-L", f"{_LOCAL}:{_listening(run, place)}", *hops))
    return tunnel, f"http://{_LOCAL}/{f'{token}/' if kind == 'tensorboard' else f'?token={token}'}"


def login() -> str:
    """What a person's machine names this one by, for ssh."""
    name = socket.getfqdn()
    return os.environ.get("RUNNER_REMOTE_LOGIN") or f"{login_name()}@{name if '.' in name else socket.gethostname()}"


def answers(run: Run, place: Place, reach: Reach) -> bool:
    """Whether it answers this machine by the way of the tunnel."""
    if reach != "ssh":
        return _answers((place.host, place.port) if place.port else _listening(run, place))
    config = run.plan.hosts.config if run.plan is not None and run.plan.hosts is not None else ""
    options = ("-o", "BatchMode=yes", "-o", "ConnectTimeout=10", *paths.with_ssh_config(config))
    with files.temporary_directory() as directory:
        forward = ("-N", "-L", f"{directory}/socket:{_listening(run, place)}", "--", _node(run))
        child = process.start(("ssh", *options, *forward), stdout=process.DEVNULL, stderr=process.DEVNULL)
        try:
            return _answers(f"{directory}/socket")
        finally:
            process.kill_group(child)


def _node(run: Run) -> str:
    record = run.records.start(0)
    return "" if record is None else record.node_name or record.host


def _listening(run: Run, place: Place) -> str:
    return f"{place.host}:{place.port}" if place.port else str(run.path / _SOCKET)


def _answers(address: str | tuple[str, int]) -> bool:
    end = time.monotonic() + _ANSWERS_S
    while time.monotonic() < end:
        with suppress(OSError), socket.socket(socket.AF_UNIX if isinstance(address, str) else socket.AF_INET) as server:
            server.settimeout(5)
            server.connect(address)
            server.sendall(b"GET / HTTP/1.0\r\nHost: localhost\r\n\r\n")
            if server.recv(5) == b"HTTP/":
                return True
        time.sleep(0.3)
    return False
