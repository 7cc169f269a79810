"""The program of ``serve`` on a node, with a real server and no person."""

import json
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from gpu_runner_inside.serve import Server, _check

from runner.jobs.service import program_inside
from tests.support.tunnels import SERVER
from tests.support.users import AS_ROOT, BOB
from tests.support.waiting import until

MODULES = Path(__file__).parents[3] / "recipes/lib/modules"


def started(run: Path, *words: str, **more: str) -> "subprocess.Popen[str]":
    """In a directory where another user may have left modules."""
    (run / "attached").touch()
    (run / "here").mkdir()
    for name in ("gpu_runner_inside", "json", "jupyterlab"):
        (run / f"here/{name}.py").write_text("raise SystemExit('run as another user')")
    env = {**os.environ, "RUNNER_RUN_DIR": str(run), "RUNNER_LIB": str(MODULES), **more}
    argv, pipe = [sys.executable, *program_inside("serve")[1:], *words], subprocess.PIPE
    return subprocess.Popen(argv, text=True, cwd=run / "here", env=env, stdout=pipe, stderr=pipe)


@pytest.mark.parametrize(("way", "listens"), [("socket", ["{socket}"]), ("loopback", ["{address}", "{port}"])])
def test_it_keeps_its_token_to_its_owner_and_ends_once_no_one_is_connected(
    way: str, listens: list[str], tmp_path: Path
) -> None:
    """In a directory with a space."""
    tmp_path = tmp_path / "a run"
    (serve := tmp_path / "serve").parent.mkdir()
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


def test_jupyter_is_the_environments(tmp_path: Path) -> None:
    package = tmp_path / "site/jupyterlab"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "__main__.py").write_text("import json, sys; print(json.dumps(sys.argv))")
    child = started(tmp_path, "loopback", "0", "notebook", "--more", PYTHONPATH=str(package.parent))
    out, err = child.communicate(timeout=20)
    assert child.returncode == 0, err
    assert json.loads(out)[0] == str(package / "__main__.py") and json.loads(out)[-1] == "--more"


@pytest.mark.parametrize("starter", ["provisioning/local_provisioner", "manager"])
def test_kernels_import_nothing_from_where_others_may_write(starter: str, tmp_path: Path) -> None:
    """Neither the first Python nor one that it starts; where others may write, none is started."""
    of_jupyter = tmp_path / f"modules/jupyter_client/{starter}.py"
    of_jupyter.parent.mkdir(parents=True)
    of_jupyter.write_text("import os\ndef launch_kernel(command, cwd): return [os.path.realpath(cwd), *command]")
    (tmp_path / "modules/jupyterlab").mkdir()
    (tmp_path / "modules/jupyterlab/__init__.py").touch()
    (tmp_path / "modules/jupyterlab/__main__.py").write_text(
        f"import json, sys\nfrom jupyter_client.{starter.replace('/', '.')} import launch_kernel\n"
        "command = [sys.executable, '-m', 'runs', sys.executable, '-um', 'ipykernel_launcher', '-f', 'x']\n"
        "print(json.dumps(launch_kernel([*command], cwd=sys.argv[-2])))\n"
        "launch_kernel([*command], cwd=sys.argv[-1])\n"
    )
    (tmp_path / "own").mkdir()
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    places = (str(tmp_path / name) for name in ("own", "open"))
    child = started(tmp_path, "loopback", "0", "notebook", *places, PYTHONPATH=str(tmp_path / "modules"))
    out, err = child.communicate(timeout=20)
    assert (
        f"no kernel starts in {tmp_path}/open, as others may write to {tmp_path}/open" in err
        and "RUNNER_TRUST=NAME" in err
    )
    own = json.loads(out)
    assert [word in ("runs", "ipykernel_launcher") for word in own].count(True) == 2 and not {"-m", "-um"} & {*own}
    assert own[0] == str(tmp_path / "own")


def test_no_kernel_starts_in_a_strangers_fuse_file_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which may say that all in it is this user's, and his group's."""
    its = tmp_path.stat()
    monkeypatch.setattr("gpu_runner_inside.serve._trusted", lambda: ({os.geteuid()}, {its.st_gid}))
    monkeypatch.setattr("gpu_runner_inside.serve.owner_of", lambda at: 4711 if os.path.samestat(at, its) else at.st_uid)
    handle = os.open(tmp_path, os.O_PATH)
    with pytest.raises(RuntimeError, match=f"as {tmp_path} is user 4711's"):
        _check(handle)
    os.close(handle)


def test_no_tunnel_leads_to_a_loopback_address_of_the_login_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where another user may listen, who would get the token."""
    monkeypatch.setattr("gpu_runner_inside.serve.resolve", lambda _: "127.0.1.1")
    with pytest.raises(SystemExit, match=r"it is 127\.0\.1\.1 here; fix: .*`ssh_to_nodes: true`"):
        Server("address", 0, tmp_path)


# It listens at an address of its own, and another user at the one where we look for it.
_ELSEWHERE = f"""
import os, socket, sys
port = int(sys.argv[1])
own = socket.create_server(("::1", port), family=socket.AF_INET6)
os.seteuid({BOB})
server = socket.create_server(("127.0.0.1", port))
while True:
    connection, _ = server.accept()
    connection.recv(100)
    connection.sendall(b"HTTP/1.0 401 no\\r\\n\\r\\n")
    connection.close()
"""


@AS_ROOT
def test_another_users_server_at_its_port_is_not_taken_for_it(tmp_path: Path) -> None:
    child = started(tmp_path, "loopback", "0", "command", sys.executable, "-c", _ELSEWHERE, "{port}")
    listens = re.compile(rf"\d+: 0100007F:\w+ \w+:\w+ 0A (\S+ ){{3}} *{BOB} ")
    until(lambda: listens.search(Path("/proc/net/tcp").read_text()))
    with pytest.raises(subprocess.TimeoutExpired):
        child.wait(2)
    assert not (tmp_path / "serve/place.json").exists()
    child.terminate()
    child.communicate(timeout=20)


_ANSWERS = """
import os, socket, sys
os.seteuid(int(sys.argv[3]))
family = socket.AF_INET6 if ":" in sys.argv[2] else socket.AF_INET
server = socket.create_server((sys.argv[2], int(sys.argv[1])), family=family)
while True:
    connection, _ = server.accept()
    connection.recv(100)
    connection.sendall(b"HTTP/1.0 401 no\\r\\n\\r\\n")
    connection.close()
"""


@AS_ROOT
@pytest.mark.parametrize(("own", "strangers", "status"), [("::1", "127.0.0.1", 0), ("127.0.0.1", "127.0.0.2", 401)])
def test_another_user_who_listens_at_its_port_does_not_answer_for_it_and_does_not_hold_it_up(
    tmp_path: Path, own: str, strangers: str, status: int
) -> None:
    server = Server("loopback", 0, tmp_path)
    words = (sys.executable, "-c", _ANSWERS, str(server._port))
    with subprocess.Popen((*words, own, "0")) as first, subprocess.Popen((*words, strangers, str(BOB))) as second:
        try:
            until(lambda: {row[7] for row in server._connections("0A")} == {"0", str(BOB)})
            assert server._answer() == status
        finally:
            first.kill()
            second.kill()


@pytest.mark.parametrize(("program", "says"), [("no-such-program", "cannot be run"), ("false", "")])
def test_a_server_that_does_not_start_ends_it(program: str, says: str, tmp_path: Path) -> None:
    child = started(tmp_path, "loopback", "0", "command", program)
    err = child.communicate(timeout=20)[1]
    assert (child.returncode, says in err, "Traceback" in err, (tmp_path / "serve").exists()) == (1, True, False, False)
