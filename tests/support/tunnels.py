"""A person who calls ``serve``, and their tunnel: by the real ssh, through a login node with a real sshd."""

import json
import os
import re
import shlex
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

from runner.box import Box
from tests.support.commands import Runner, extended, ran
from tests.support.sshd import Nodes, free_port, running_nodes
from tests.support.terminals import Terminal
from tests.support.users import ALICE, become, open_directory
from tests.support.waiting import until

# Of the standard library alone: listens at a path, or an address and port, and tells who has the token its job.
SERVER = """\
import http.server, os, socketserver, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        is_good = self.path == "/?token=" + os.environ["RUNNER_SERVE_TOKEN"]
        self.send_response(200 if is_good else 403)
        self.end_headers()
        self.wfile.write(os.environ["SLURM_JOB_ID"].encode() if is_good else b"")
    def log_message(self, *_): pass
kind = socketserver.UnixStreamServer if len(sys.argv) == 2 else socketserver.TCPServer
kind(sys.argv[1] if len(sys.argv) == 2 else (sys.argv[1], int(sys.argv[2])), Handler).serve_forever()
"""
CONNECTS = """\
import socket, sys
for _ in range(int(sys.argv[2])):
    try:
        sys.exit(f"connected: {socket.socket(socket.AF_UNIX).connect(sys.argv[1])}")
    except PermissionError:
        pass
"""


@dataclass(frozen=True)
class Served:
    """What is served, as a person sees it. ``waited_s``: from the start of the rank to the line of the tunnel."""

    run: Path
    line: str
    url: str
    seen: str
    waited_s: float

    @property
    def token(self) -> str:
        return (self.run / "serve/token").read_text()

    @property
    def job(self) -> str:
        return str(json.loads((self.run / "job.json").read_text())["job_id"])

    def get(self, url: str) -> tuple[int, str]:
        try:
            with urlopen(url, timeout=30) as answer:
                return answer.status, answer.read().decode()
        except HTTPError as error:
            return error.code, ""

    def assert_closed_to_others(self, times: int, code: int, url: str) -> None:
        """The token is in no argument and in its owner's files alone; another user and another token are refused."""
        directory, token = self.run / "serve", self.token
        assert len(token) == 64 and token not in ran(["ps", "-eww", "-o", "args"]).out
        assert {Path(name).parent for name in ran(["grep", "-rlF", token, self.run]).out.splitlines()} == {directory}
        assert {path.stat().st_mode & 0o077 for path in (directory, *directory.iterdir())} == {0}
        assert {self.get(url.replace(token, "0" * 64))[0] for _ in range(times)} == {code}
        if (directory / "socket").exists():
            ran([*become(ALICE), "/usr/bin/python3", "-c", CONNECTS, directory / "socket", str(times)])


@contextmanager
def served(cluster: Box, runner: Runner, runtime: str, ssh: bool | None, *words: str) -> Iterator[Served]:
    """Until Ctrl-C, which ends the job and leaves nothing that was served. ``ssh``: whether it reaches the nodes."""
    entering = ("nsenter", f"--net=/proc/{cluster.pid}/ns/net", "--")
    with open_directory() as cwd, running_nodes(cwd, os.environ["PATH"], entering) as login:
        mine = Runner.at(extended(runner.site, cwd, ssh_to_nodes=ssh, runtimes=[runtime]), cwd, runner.clients)
        (cwd / "logs").mkdir()
        program = _ssh(cwd, login)
        argv = [*login.entering, *mine.argv("submit")[:3], "serve", "--site", str(mine.site), "--runs", str(mine.runs)]
        env = {**mine.environment(), "TERM": "xterm", "PATH": f"{cwd}:{mine.environment()['PATH']}"}
        terminal, port = Terminal([*argv, *words], env, cwd), str(free_port())
        terminal.until("Ctrl-C here ends its job")
        waited_s = time.time() - (mine.newest() / "ranks/0.start.json").stat().st_mtime
        line, url = re.findall(r"(ssh -N .*|http://127.0.0.1:\d+/\S+)\r", re.sub(r"\b8888\b", port, terminal.seen))
        child = subprocess.Popen([program, *shlex.split(line)[1:]], stdin=subprocess.DEVNULL)
        try:
            until(lambda: socket.socket().connect_ex(("127.0.0.1", int(port))) == 0, "the tunnel")
            yield Served(mine.newest(), line, url, terminal.seen, waited_s)
        finally:
            child.terminate()
            child.wait(20)
            terminal.type("\x03")
            assert terminal.end() == 130
            mine("wait", mine.newest().name, code=5)
            assert not (mine.newest() / "serve").exists()


def _ssh(directory: Path, login: Nodes) -> Path:
    """The person's ssh: it knows the login node, which is called like this machine, and the box's nodes."""
    hosts = [*((name, 0) for name in {socket.getfqdn(), socket.gethostname()}), ("dgx01", 1), ("dgx02", 1)]
    config, program = login.configure("serve_config"), directory / "ssh"
    names = "".join(
        f"Host {name}\n  HostName {login.nodes[at].address}\n  Port {login.nodes[at].port}\n" for name, at in hosts
    )
    pipe = "bash -c 'exec 3<>/dev/tcp/%h/%p; cat <&3 & exec cat >&3'"  # from this machine's network to theirs
    config.write_text(f"{names}{config.read_text()}  ProxyCommand {' '.join(login.entering)} {pipe}\n")
    program.write_text(f'#!/bin/sh\nexec /usr/bin/ssh -F {config} "$@"\n')
    program.chmod(0o755)
    return program
