"""``serve`` on the real Slurm of the box: a server on a node, and a tunnel to it through a login node's real sshd."""

import os
from collections.abc import Iterator
from pathlib import Path
from urllib.error import HTTPError

import pytest

from runner.box import Box
from runner.images.store.stored_image import StoredImage
from tests.support.commands import Runner, extended
from tests.support.sshd import Nodes, running_nodes
from tests.support.terminals import Terminal
from tests.support.tunnels import served
from tests.support.users import AS_ROOT, open_directory

pytestmark = [pytest.mark.integration, AS_ROOT]
# Of the standard library alone; who has the token may read the variable SLURM_JOB_ID.
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


@pytest.fixture(scope="module")
def login(cluster: Box, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    with running_nodes(tmp_path_factory.mktemp("login"), os.environ["PATH"], cluster.pid) as nodes:
        yield nodes


@pytest.mark.parametrize(
    ("listens", "runtime", "reaches", "tunnel"),
    [
        (("{socket}",), "charliecloud", True, "/serve/socket -J root@"),
        (("{address}", "{port}"), "charliecloud", None, ":10.0.0.1"),
        (("{address}", "{port}"), "native", True, ":127.0.0.1:"),
    ],
    ids=["socket", "address", "loopback"],
)
def test_a_server_on_a_node_and_the_tunnel_to_it(
    listens: tuple[str, ...],
    runtime: str,
    reaches: bool,
    tunnel: str,
    runner: Runner,
    squashfs: StoredImage,
    login: Nodes,
) -> None:
    with open_directory() as cwd:
        site = extended(runner.site, cwd, ssh_to_nodes=reaches, runtimes=[runtime])
        mine = Runner.at(site, cwd, runner.clients)
        image = () if runtime == "native" else ("--image", squashfs.digest)
        words = (*image, "--", "python3", "-c", SERVER, *listens)
        with served(mine, cwd, login, *words) as here:
            assert tunnel in here.line
            assert here.get().decode().isdigit()
            with pytest.raises(HTTPError, match="403"):
                here.get(here.url.replace(here.token, "0" * 64))
            here.assert_closed_to_others()
            assert "warning" not in here.terminal.seen


def test_it_ends_without_connections_and_with_its_server(runner: Runner, tmp_path: Path) -> None:
    site = extended(runner.site, tmp_path, runtimes=["native"])
    mine = Runner.at(site, tmp_path, runner.clients)
    argv = mine.argv("submit")[:3]

    def ended(*words: str) -> tuple[int, str]:
        terminal = Terminal(
            [*argv, "serve", "--site", str(site), "--runs", str(mine.runs), *words], mine.environment(), tmp_path
        )
        return terminal.end(150), terminal.seen

    code, seen = ended("--idle", "1", "--", "python3", "-m", "http.server", "--bind", "{address}", "{port}")
    assert (code, "asks for no token" in seen) == (0, True)
    code, seen = ended("--", "sh", "-c", "exit 7 {port}")
    assert code != 0 and "it answers" not in seen


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (("--", "python3", "-m", "http.server"), "the command listens at {port}, or at {socket}"),
        (("--", "x", "{socket}"), "`ssh_to_nodes: true`"),
        (("--notebook", "--tensorboard", "."), "one server for a job"),
        (("--recipe", "probe", "--notebook"), "`serve` runs no recipe"),
    ],
)
def test_what_it_does_not_take(words: tuple[str, ...], what: str, runner: Runner) -> None:
    said = runner("serve", "--site", "box", *words, code=2).err
    assert what in said and "fix:" in said
