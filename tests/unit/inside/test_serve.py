"""The program of ``serve`` on a node: real servers of the standard library, a real socket, and no person."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.waiting import until

MODULES = Path(__file__).parents[3] / "recipes/lib/modules"
MAIN = "from gpu_runner_inside.serve import main; main()"
OPEN = ("python3", "-m", "http.server", "--bind", "{address}", "{port}")
# Says what its environment and its arguments are, and answers with 403.
LISTENS = """\
import contextlib, os, socket, sys
print(os.environ["RUNNER_SERVE_TOKEN"], sys.argv, flush=True)
listening = socket.socket(socket.AF_UNIX)
listening.bind(sys.argv[1])
listening.listen()
while connection := listening.accept()[0]:
    with connection, contextlib.suppress(OSError):
        while connection.recv(999):
            connection.sendall(b"HTTP/1.0 403 no")
"""


@contextmanager
def started(run: Path, *words: str) -> Iterator["subprocess.Popen[str]"]:
    (run / "attached").touch()
    child = subprocess.Popen(
        [sys.executable, "-c", MAIN, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "RUNNER_RUN_DIR": str(run), "PYTHONPATH": str(MODULES)},
    )  # fmt: skip
    try:
        yield child
    finally:
        child.terminate()
        child.communicate()


def test_the_token_is_in_the_environment_and_in_a_file_and_in_no_argument(tmp_path: Path) -> None:
    with started(tmp_path, "socket", "0", "command", sys.executable, "-c", LISTENS, "{socket}") as child:
        until((tmp_path / "serve/place.json").exists)
        token = (tmp_path / "serve/token").read_text()
        assert child.stdout is not None
        assert child.stdout.readline() == f"{token} ['-c', '{tmp_path}/serve/socket']\n"
        assert (len(token), (tmp_path / "serve").stat().st_mode & 0o777) == (64, 0o700)
        assert {path.stat().st_mode & 0o077 for path in (tmp_path / "serve").iterdir()} == {0}
        assert json.loads((tmp_path / "serve/place.json").read_text()) == {
            "host": "127.0.0.1",
            "port": 0,
            "status": 403,
        }
        child.send_signal(signal.SIGTERM)
        assert child.wait(20) == 143
    assert not (tmp_path / "serve").exists()


@pytest.mark.parametrize("way", ["socket", "loopback"])
def test_it_ends_once_no_connection_was_there_for_so_long(way: str, tmp_path: Path) -> None:
    words = (sys.executable, "-c", LISTENS, "{socket}") if way == "socket" else OPEN
    with started(tmp_path, way, "2", "command", *words) as child:
        until((tmp_path / "serve/place.json").exists)
        port = json.loads((tmp_path / "serve/place.json").read_text())["port"]
        with socket.socket(socket.AF_UNIX if way == "socket" else socket.AF_INET) as connection:
            connection.connect(("127.0.0.1", port) if port else str(tmp_path / "serve/socket"))
            with pytest.raises(subprocess.TimeoutExpired):
                child.wait(5)
        assert child.wait(20) == 0
        assert child.stderr is not None
        assert "no connection for 2 s" in child.stderr.read()


@pytest.mark.parametrize(("word", "code", "says"), [("no-such-program", 1, "cannot be run"), ("false", 1, "")])
def test_a_server_that_does_not_start_ends_it(word: str, code: int, says: str, tmp_path: Path) -> None:
    with started(tmp_path, "loopback", "0", "command", word) as child:
        err = child.communicate(timeout=20)[1]
        assert (child.returncode, says in err, "Traceback" in err) == (code, True, False)
    assert not (tmp_path / "serve").exists()
