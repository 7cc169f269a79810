"""Serves from a node of a job what a person opens through a tunnel: ``main`` is the program of such a job.

Arguments: WAY (``socket``: in the run directory; ``loopback``; ``address``: the node's own), the seconds without a
connection after which it ends (0: never), KIND (``notebook``, ``tensorboard`` or ``command``) and its words, in which
``{socket}``, ``{port}`` and ``{address}`` are replaced. The server gets the token in RUNNER_SERVE_TOKEN, never as an
argument. ``serve/`` in the run directory, its owner's alone, has the token, the socket, and ``place.json`` once the
server has answered; a directory on the node, as closed, has what the server keeps and its kernels' sockets, which have
no token: at TCP's ports anybody would read what runs there. Both are removed at the end.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import signal
import socket
import stat
import subprocess
import sys
import time
from contextlib import suppress
from importlib import import_module
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp
from typing import Any, Container

from gpu_runner_inside.hold import PATIENCE_S, hold
from gpu_runner_inside.launcher.caches import of_user
from gpu_runner_inside.launcher.network import free_port, is_loopback, resolve
from gpu_runner_inside.launcher.places import (
    all_may_write,
    first_of_people,
    groups_of_all,
    owner_of,
    safe_places,
    status_of,
    trusted_names,
    unmapped_user,
)

_POLL_S = 0.5
_LONGEST_PLACE = 107 - len("/serve-12345678/kernel-12345678-1234-1234-1234-123456789012-ipc-99")
# What lies in the directory where the job starts may be another user's, and is no module of the server.
_ELSEWHERE = "import os, sys; sys.path[:] = filter(None, sys.path);"
_MODULE = f"{_ELSEWHERE} import runpy; runpy.run_module(sys.argv.pop(1), run_name='__main__', alter_sys=True)"
_NOTEBOOK = (
    f"{_ELSEWHERE} sys.path.insert(0, {str(Path(__file__).parents[1])!r});"
    f"from gpu_runner_inside.serve import change_kernels; del sys.path[0]; change_kernels(); {_MODULE}"
)
_M = re.compile("-([bBdEiIOPqsSuvx]*)m(.*)", re.S)  # -m NAME, -um NAME, -mNAME
# As ``tensorboard``, whose every path begins with the token then, which prints that in no log. It writes it into a file
# below TMPDIR, too, in a directory that in /tmp could be another user's; its faster reader of logs asks for no token.
_TENSORBOARD = (
    f"{_ELSEWHERE} os.environ['TMPDIR'] = os.environ['JUPYTER_RUNTIME_DIR']; from tensorboard import main, program;"
    "sys.argv += ['--load_fast=false', '--path_prefix', '/' + os.environ['RUNNER_SERVE_TOKEN']];"
    "program.WerkzeugServer.print_serving_message = lambda server: None; main.run_main()"
)


def change_kernels() -> None:
    """What lies beside a notebook, where its kernel starts, may be another user's, and is no module of the kernel's.
    The cells import from there, but where strangers may write: there no kernel starts.
    """
    starter: Any = None
    for name in (
        "jupyter_client.provisioning.local_provisioner",
        "jupyter_client.manager",
    ):  # that of releases before 7
        with suppress(ImportError):
            starter = starter or import_module(name)
    if starter is None:
        return
    if (start := getattr(starter, "launch_kernel", None)) is None:
        sys.exit("this jupyter_client starts kernels in a way that is not known: pip install 'jupyter_client>=7'")

    def launch(command: list[str], **how: Any) -> Any:
        for at in reversed(range(1, len(command))):  # also of a Python that a first one starts (nb_conda_kernels)
            if flags := _M.match(command[at]):
                words = ["-" + flags[1]] * bool(flags[1]) + ["-c", _MODULE] + [flags[2]] * bool(flags[2])
                command[at : at + 1] = words
        # What is asked is where it starts, whatever is found by that path then.
        handle = os.open(how.get("cwd") or ".", os.O_PATH | os.O_DIRECTORY)
        try:
            how["cwd"] = f"/proc/self/fd/{handle}"
            _check(handle)
            return start(command, **how)
        finally:
            os.close(handle)

    starter.launch_kernel = launch


def _check(handle: int) -> None:
    """Raises RuntimeError: others may write to an open directory, from which an IPython reads its settings, too."""
    place = os.readlink(f"/proc/self/fd/{handle}")
    if whose := _of_strangers(place) or ("" if os.path.samestat(os.fstat(handle), os.lstat(place)) else "it was moved"):
        fix = "copy the notebook, `serve` there, or `export RUNNER_TRUST=NAME` (@GROUP, or a number) before"
        raise RuntimeError(f"no kernel starts in {place}, as {whose}; fix: {fix}")


def _of_strangers(path: str) -> str:
    """Why others may write to a directory, or exchange it, in words; else empty. As runner/core/ownership.py has it,
    but of whom a user namespace does not know only those above may be root. ``path``: a real one. Where the server
    started was asked outside; who may write there has made what is below.
    """
    users, groups = _trusted()
    here, unknown, first = os.path.realpath("."), unmapped_user(), first_of_people()
    is_team = os.access(here, os.W_OK) and f"{path}/".startswith(f"{here}/")
    below: int | None = None
    while path != here:
        about, above = status_of(path), os.lstat(os.path.dirname(path))
        owner = owner_of(about)
        takes_none = about.st_mode & stat.S_ISVTX and below in users
        if all_may_write(path, about) and not takes_none:
            return f"others may write to {path}"
        of_group = {about.st_gid, *((above.st_gid,) if above.st_mode & stat.S_IWGRP else ())}
        is_known = owner in users or (owner == unknown and (is_team or below is not None))
        is_others = above.st_gid not in groups and above.st_gid >= first and above.st_uid != os.geteuid()
        is_given = above.st_mode & stat.S_IWGRP and is_others
        is_lying = owner != about.st_uid  # a FUSE file system, of its groups, too
        if not is_known and (is_lying or about.st_mode & stat.S_IWOTH or is_given or groups.isdisjoint(of_group)):
            return f"{path} is user {owner}'s"
        if path == "/":
            break
        path, below = os.path.dirname(path), owner
    return ""


def _trusted() -> tuple[Container[int], set[int]]:
    """Users, and groups that this user was put into."""
    first, (login, _) = first_of_people(), groups_of_all()
    with open("/proc/sys/kernel/overflowgid", encoding="ascii") as file:
        unknown = int(file.read())  # which all have whom a user namespace does not know
    users, of_projects = trusted_names()
    mine = {*os.getgroups()} - {os.getgid() if login is None else login, unknown}
    return {*range(first), os.geteuid(), *users}, of_projects | {each for each in mine if each >= first}


class Server:
    """The server of a job: where it listens, and its process."""

    def __init__(self, way: str, idle_s: float, directory: Path) -> None:
        self._idle_s, self._directory = idle_s, directory
        self._path = str(directory / "socket") if way == "socket" else ""
        self._host = resolve(socket.gethostname()) if way == "address" else "127.0.0.1"
        if way == "address" and is_loopback(self._host):  # of the login node it is another machine's, anybody's there
            what = f"no login node reaches this node's own name, {socket.gethostname()!r}: it is {self._host} here"
            sys.exit(f"{what}; fix: where ssh reaches the nodes, `ssh_to_nodes: true` in the site file")
        self._port = 0 if self._path else free_port(self._host, [0])
        self._status, self._used = 0, time.monotonic()

    def command(self, kind: str, words: list[str]) -> list[str]:
        at = ["--sock={socket}", "--sock-mode=0600"] if self._path else ["--ip={address}", "--port={port}"]
        if kind == "notebook":
            modules = [name for name in ("jupyterlab", "notebook", "jupyter_server") if find_spec(name)]
            if not modules:
                sys.exit("No module named jupyterlab: pip install jupyterlab ipykernel")
            given = ["--KernelManager.transport=ipc", "--no-browser", "--allow-root", *at, "--port-retries=0", *words]
            words = [sys.executable, "-c", _NOTEBOOK, modules[0], *given]
        elif kind == "tensorboard":
            words = [sys.executable, "-c", _TENSORBOARD, "--host={address}", "--port={port}", "--logdir", *words]
        for name, value in (("{socket}", self._path), ("{port}", str(self._port)), ("{address}", self._host)):
            words = [word.replace(name, value) for word in words]
        return words

    def run(self, words: list[str], token: str, kept: str, attached: Path) -> int:
        """Until it ends, is not used, or no terminal is attached any more; returns its exit status."""
        environment = {**os.environ, "RUNNER_SERVE_TOKEN": token, "JUPYTER_TOKEN": token, "JUPYTER_RUNTIME_DIR": kept}
        parts = environment.get("PYTHONPATH", "").split(":")  # of an empty one Python makes where it starts
        environment["PYTHONPATH"] = ":".join(each for each in parts if each.startswith("/"))
        try:
            self._child = subprocess.Popen(words, env=environment)
        except OSError as error:
            sys.exit(f"{words[0]} cannot be run: {error.strerror}")
        try:
            hold(attached, PATIENCE_S, _POLL_S, self._goes_on)
            return self._child.poll() or 0
        finally:
            self._child.terminate()
            with suppress(subprocess.TimeoutExpired):
                self._child.wait(10)
            self._child.kill()

    def _goes_on(self) -> bool:
        now = time.monotonic()
        if not self._status:
            self._status, self._used = self._answer(), now
            if self._status:
                place = {"host": self._host, "port": self._port, "status": self._status}
                (self._directory / "place.new").write_text(json.dumps(place))
                (self._directory / "place.new").rename(self._directory / "place.json")
        elif self._idle_s and self._is_used():
            self._used = now
        if idle := bool(self._idle_s and self._status and now - self._used > self._idle_s):
            print(f"no connection for {self._idle_s:.0f} s: the job ends", file=sys.stderr)
        return not idle and self._child.poll() is None

    def _answer(self) -> int:
        """The status of an HTTP answer to who has no token; 0 for none, or where another user took the port."""
        with socket.socket(socket.AF_UNIX if self._path else socket.AF_INET) as connection, suppress(
            OSError, ValueError
        ):
            connection.settimeout(5)
            connection.connect(self._path or (self._host, self._port))
            if not self._path and not self._is_own(connection):
                return 0
            connection.sendall(b"GET / HTTP/1.0\r\nHost: localhost\r\n\r\n")
            return int(connection.recv(12)[9:])
        return 0

    def _is_own(self, connection: socket.socket) -> bool:
        """Whether a process of this user takes our connection: who listens at this address may be another one. One that
        is not taken yet has no inode.
        """
        ends = (connection.getpeername(), connection.getsockname())
        here, there = (f"{int.from_bytes(socket.inet_aton(at), sys.byteorder):08X}:{port:04X}" for at, port in ends)
        for _ in range(100):
            established = [row for row in self._connections("01") if row[9] != "0"]
            rows = [row for row in established if row[1].endswith(here) and row[2].endswith(there)]
            if rows:
                return rows[0][7] == str(os.getuid())
            time.sleep(_POLL_S / 10)
        return False

    def _is_used(self) -> bool:
        """Whether a connection is established."""
        if self._path:
            rows = [row.split(None, 7) for row in Path("/proc/net/unix").read_text().splitlines()]
            return any(row[5] == "03" and row[7:] == [self._path] for row in rows)
        return bool(self._connections("01"))

    def _connections(self, state: str) -> list[list[str]]:
        """What the kernel lists for the port: proc(5), /proc/net/tcp, where 0A listens and 01 is established."""
        files = (path for path in map(Path, ("/proc/net/tcp", "/proc/net/tcp6")) if path.exists())
        rows = [row.split() for path in files for row in path.read_text().splitlines()]
        return [row for row in rows if row[3] == state and row[1].endswith(f":{self._port:04X}")]


def _kept(otherwise: Path) -> str:
    """A new directory on the node, its owner's alone, in which the names of kernels' sockets have room (unix(7)); never
    in /tmp itself, where anybody could take its name once it is removed.
    """
    own = filter(None, map(of_user, safe_places(("/tmp", "/var/tmp"))))  # open as long as this process runs
    places = chain(safe_places((os.environ.get("TMPDIR", ""),)), (path for path, _ in own))
    shared = ("/tmp", "/var/tmp")
    place = next((each for each in places if len(each) <= _LONGEST_PLACE and each not in shared), str(otherwise))
    return mkdtemp(prefix="serve-", dir=place)


def _end(number: int, _frame: object) -> None:
    signal.signal(number, signal.SIG_IGN)  # Slurm sends one, and the launcher another
    sys.exit(128 + number)


def main() -> None:
    """As a program, of the run directory of its job."""
    way, idle_s, kind, *words = sys.argv[1:]
    os.umask(0o077)
    signal.signal(signal.SIGTERM, _end)
    run = Path(os.environ["RUNNER_RUN_DIR"])
    directory, token = run / "serve", secrets.token_hex(32)
    rmtree(directory, ignore_errors=True)  # of the first start of a job that was requeued
    directory.mkdir()
    kept = _kept(directory)
    try:
        with os.fdopen(os.open(directory / "token", os.O_CREAT | os.O_TRUNC | os.O_WRONLY, 0o600), "w") as file:
            file.write(token)
        server = Server(way, float(idle_s), directory)
        sys.exit(server.run(server.command(kind, words), token, kept, run / "attached"))
    finally:
        for each in (directory, Path(kept)):
            rmtree(each, ignore_errors=True)
