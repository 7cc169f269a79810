"""A person who calls ``serve``, and their tunnel: by the real ssh, through a login node with a real sshd."""

import json
import shlex
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from urllib.request import urlopen

from tests.support.commands import Runner, ran
from tests.support.sshd import Nodes, free_port
from tests.support.terminals import Terminal
from tests.support.users import ALICE, become
from tests.support.waiting import until

# Connects as often as asked for; each time it must be refused.
CONNECTS = """\
import socket, sys
for _ in range(int(sys.argv[2])):
    try:
        socket.socket(socket.AF_UNIX).connect(sys.argv[1])
    except PermissionError:
        continue
    sys.exit("connected")
print("refused", sys.argv[2])
"""


@dataclass(frozen=True)
class Served:
    """What is served, as a browser sees it. ``waited_s``: from the start of the rank to the line of the tunnel."""

    terminal: Terminal
    run: Path
    url: str
    line: str
    waited_s: float

    @property
    def token(self) -> str:
        return (self.run / "serve/token").read_text()

    @property
    def job(self) -> str:
        return str(json.loads((self.run / "job.json").read_text())["job_id"])

    def get(self, url: str = "") -> bytes:
        with urlopen(url or self.url, timeout=30) as answer:
            return bytes(answer.read())

    def assert_closed_to_others(self, times: int = 1) -> None:
        """The token is in no argument and in no file but its owner's, and another user connects to no socket."""
        assert self.token in self.url
        assert len(self.token) == 64
        assert self.token not in ran(["ps", "-eww", "-o", "args"]).out
        directory = self.run / "serve"
        names = ran(["grep", "-rlF", self.token, self.run]).out.split("\n")[:-1]
        assert {Path(name).parent for name in names} == {directory}
        assert directory.stat().st_mode & 0o777 == 0o700
        assert {path.stat().st_mode & 0o077 for path in directory.iterdir()} == {0}
        if (directory / "socket").exists():
            words = (*become(ALICE), "/usr/bin/python3", "-c", CONNECTS, str(directory / "socket"), str(times))
            assert ran(words).out == f"refused {times}\n"


@contextmanager
def served(runner: Runner, cwd: Path, login: Nodes, *words: str) -> Iterator[Served]:
    """Until Ctrl-C, which ends the job and leaves nothing of it."""
    ssh, names = cwd / "bin/ssh", {socket.getfqdn(), socket.gethostname()}
    ssh.parent.mkdir(exist_ok=True)
    config = login.configure("serve_config")
    hosts = [(name, login.nodes[0]) for name in names] + [(f"dgx0{number}", login.nodes[1]) for number in (1, 2)]
    at = "".join(f"Host {name}\n  HostName {node.address}\n  Port {node.port}\n" for name, node in hosts)
    pipe = "bash -c 'exec 3<>/dev/tcp/%h/%p; cat <&3 & exec cat >&3'"  # from this machine's network to theirs
    config.write_text(f"{at}{config.read_text()}  ProxyCommand {' '.join(login.entering)} {pipe}\n")
    ssh.write_text(f'#!/bin/sh\nexec /usr/bin/ssh -F {config} "$@"\n')
    ssh.chmod(0o755)
    argv = [
        *login.entering,
        *runner.argv("submit")[:3],
        "serve",
        "--site",
        str(runner.site),
        "--runs",
        str(runner.runs),
    ]
    env = runner.environment()
    terminal = Terminal([*argv, *words], {**env, "TERM": "xterm", "PATH": f"{ssh.parent}:{env['PATH']}"}, cwd)
    terminal.until("Ctrl-C here ends its job")
    waited_s = time.time() - (runner.newest() / "ranks/0.start.json").stat().st_mtime
    port = str(free_port())
    lines = [
        line.strip().replace("8888", port, 1)
        for line in terminal.seen.splitlines()
        if ":8888" in line or "ssh -N" in line
    ]
    child = subprocess.Popen([str(ssh), *shlex.split(lines[0])[1:]], stdin=subprocess.DEVNULL)
    here = Served(terminal, runner.newest(), lines[1], lines[0], waited_s)
    try:
        until(partial(_connects, int(port)), "the tunnel")
        yield here
    finally:
        child.terminate()
        child.wait(20)
        terminal.type("\x03")
        assert terminal.end() == 130
        runner("wait", here.run.name, code=5)
        assert not (here.run / "serve").exists()


def _connects(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
