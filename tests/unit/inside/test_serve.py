"""The program of ``serve`` on a node, with a real server and no person."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.tunnels import SERVER
from tests.support.waiting import until

MODULES = Path(__file__).parents[3] / "recipes/lib/modules"
MAIN = "from gpu_runner_inside.serve import main; main()"


def started(run: Path, *words: str) -> "subprocess.Popen[str]":
    (run / "attached").touch()
    env = {**os.environ, "RUNNER_RUN_DIR": str(run), "PYTHONPATH": str(MODULES)}
    argv, pipe = [sys.executable, "-c", MAIN, *words], subprocess.PIPE
    return subprocess.Popen(argv, text=True, env=env, stdout=pipe, stderr=pipe)


@pytest.mark.parametrize(("way", "listens"), [("socket", ["{socket}"]), ("loopback", ["{address}", "{port}"])])
def test_it_keeps_its_token_to_its_owner_and_ends_once_no_one_is_connected(
    way: str, listens: list[str], tmp_path: Path
) -> None:
    serve = tmp_path / "serve"
    child = started(tmp_path, way, "2", "command", sys.executable, "-c", SERVER, *listens)
    until((serve / "place.json").exists)
    port = json.loads((serve / "place.json").read_text())["port"]
    assert len((serve / "token").read_text()) == 64
    assert {path.stat().st_mode & 0o077 for path in (serve, *serve.iterdir())} == {0}
    with socket.socket(socket.AF_INET if port else socket.AF_UNIX) as connection:
        connection.connect(("127.0.0.1", port) if port else str(serve / "socket"))
        with pytest.raises(subprocess.TimeoutExpired):
            child.wait(4)
    err = child.communicate(timeout=20)[1]
    assert (child.returncode, "no connection for 2 s" in err, serve.exists()) == (0, True, False)


@pytest.mark.parametrize(("program", "says"), [("no-such-program", "cannot be run"), ("false", "")])
def test_a_server_that_does_not_start_ends_it(program: str, says: str, tmp_path: Path) -> None:
    child = started(tmp_path, "loopback", "0", "command", program)
    err = child.communicate(timeout=20)[1]
    assert (child.returncode, says in err, "Traceback" in err, (tmp_path / "serve").exists()) == (1, True, False, False)
