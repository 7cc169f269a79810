"""Jupyter and TensorBoard by ``serve``, in the box: a cell that a kernel on a node executes through a tunnel, natively
and in a container; a wrong token and another user, refused each time.
"""

import os
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.error import HTTPError

import pytest

from runner.box import Box
from runner.images.store.stored_image import StoredImage
from tests.support.commands import Runner, extended, ran
from tests.support.sshd import Nodes, running_nodes
from tests.support.tunnels import served
from tests.support.users import AS_ROOT, open_directory

pytestmark = AS_ROOT
TIMES = 500
MOST_S = 15.0
PACKAGES = ("jupyter_server==2.21.1", "ipykernel==7.4.0", "tensorboard==2.21.0", "setuptools==80.9.0")
# A new kernel executes the cell, by the websocket of a notebook. Arguments: the address, the token, the cell.
CLIENT = """\
import asyncio, json, sys, urllib.request, uuid
from tornado.websocket import websocket_connect
base, token, cell = sys.argv[1:]
headers = {"Authorization": "token " + token}
made = urllib.request.Request(base + "/api/kernels", b"{}", {**headers, "Content-Type": "application/json"})
kernel = json.load(urllib.request.urlopen(made, timeout=60))["id"]
def message(kind, **content):
    header = {"msg_id": uuid.uuid4().hex, "session": "s", "username": "", "version": "5.3", "msg_type": kind}
    return json.dumps({"header": header, "parent_header": {}, "metadata": {}, "channel": "shell", "content": content})
async def run():
    from tornado.httpclient import HTTPRequest
    url = base.replace("http", "ws") + f"/api/kernels/{kernel}/channels?session_id=s"
    socket = await websocket_connect(HTTPRequest(url, headers=headers))
    await socket.write_message(message("execute_request", code=cell, silent=False))
    while True:
        answer = json.loads(await socket.read_message())
        if answer["msg_type"] in ("stream", "error"):
            return print(answer["content"])
asyncio.run(asyncio.wait_for(run(), 60))
"""
CELL = "import os; print(6 * 7, os.environ['SLURM_JOB_ID'], os.environ['SLURMD_NODENAME'], os.getcwd())"


@pytest.fixture(scope="module")
def login(cluster: Box, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    with running_nodes(tmp_path_factory.mktemp("login"), os.environ["PATH"], cluster.pid) as nodes:
        yield nodes


@pytest.fixture(scope="module")
def jupyter() -> Iterator[Path]:
    """The packages, for this Python and the image's, which are of one version."""
    with open_directory() as directory:
        ran(["/usr/bin/env", "pip", "install", "--quiet", "--target", directory, *PACKAGES], timeout_s=1200)
        yield directory


@pytest.mark.parametrize(("runtime", "reaches"), [("native", True), ("charliecloud", True), ("native", None)], ids=str)
def test_a_cell_is_executed_on_the_node(
    runtime: str, reaches: bool | None, runner: Runner, squashfs: StoredImage, login: Nodes, jupyter: Path
) -> None:
    with open_directory() as cwd:
        mine = Runner.at(extended(runner.site, cwd, ssh_to_nodes=reaches, runtimes=[runtime]), cwd, runner.clients)
        image = () if runtime == "native" else ("--image", squashfs.digest, "--mount", f"{jupyter}:{jupyter}")
        with served(mine, cwd, login, *image, "--env", f"PYTHONPATH={jupyter}", "--notebook") as here:
            base = here.url.partition("/?")[0]
            words = ("/usr/bin/env", "python3", "-c", CLIENT, base, here.token, CELL)
            began = time.monotonic()
            out = ran(words, env={**os.environ, "PYTHONPATH": str(jupyter)}).out
            took_s = here.waited_s + time.monotonic() - began
            print(f"\n{runtime}: from the allocation to the executed cell {took_s:.1f} s")
            assert f"42 {here.job} dgx0" in out
            assert runtime != "native" or took_s <= MOST_S
            for _ in range(TIMES):
                with pytest.raises(HTTPError, match="403"):
                    here.get(f"{base}/api/contents?token={'0' * 64}")
            here.assert_closed_to_others(TIMES)


def test_tensorboard_asks_for_the_token(runner: Runner, login: Nodes, jupyter: Path) -> None:
    with open_directory() as cwd:
        (cwd / "logs").mkdir()
        mine = Runner.at(extended(runner.site, cwd, runtimes=["native"]), cwd, runner.clients)
        with served(mine, cwd, login, "--env", f"PYTHONPATH={jupyter}", "--tensorboard", "logs") as here:
            assert here.get(f"{here.url}data/logdir") == f'{{"logdir": "{cwd}/logs"}}'.encode()
            for _ in range(TIMES):
                with pytest.raises(HTTPError, match="404"):
                    here.get(here.url.replace(here.token, "0" * 64))
            here.assert_closed_to_others()
