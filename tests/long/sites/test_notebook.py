"""Jupyter and TensorBoard by ``serve``, in the box: a cell that a kernel on a node executes through a tunnel, natively
and in a container; a wrong token and another user, refused each time.
"""

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from runner.box import Box
from runner.images.store.stored_image import StoredImage
from tests.support.commands import Runner, ran
from tests.support.tunnels import served
from tests.support.users import AS_ROOT, open_directory

pytestmark = AS_ROOT
TIMES, MOST_S = 500, 15.0
NATIVE_S: list[float] = []
JUPYTER = ("jupyter_server==2.21.1", "ipykernel==7.4.0", "jupyter-kernel-client==1.0.2")
PACKAGES = (*JUPYTER, "tensorboard==2.21.0", "setuptools==80.9.0")
CLIENT = """\
import sys
from jupyter_kernel_client import JupyterKernelClient
with JupyterKernelClient(server_url=sys.argv[1], token=sys.argv[2]) as kernel:
    print(kernel.execute(sys.argv[3]))
"""
CELL = "import os; print(6 * 7, os.environ['SLURM_JOB_ID'], os.environ['SLURMD_NODENAME'])"


@pytest.fixture(scope="module")
def packages() -> Iterator[Path]:
    """For this Python and the image's, which are of one version."""
    with open_directory() as directory:
        ran(["/usr/bin/env", "pip", "install", "--quiet", "--target", directory, *PACKAGES], timeout_s=1200)
        yield directory


@pytest.mark.parametrize(("runtime", "ssh"), [("native", True), ("charliecloud", True), ("native", None)], ids=str)
def test_a_cell_is_executed_on_the_node(
    runtime: str, ssh: bool | None, runner: Runner, squashfs: StoredImage, cluster: Box, packages: Path
) -> None:
    image = () if runtime == "native" else ("--image", squashfs.digest, "--mount", f"{packages}:{packages}")
    path = f"PYTHONPATH={packages}"
    with served(cluster, runner, runtime, ssh, *image, "--env", path, "--notebook") as here:
        base, began = here.url.partition("/?")[0], time.monotonic()
        out = ran(["/usr/bin/env", path, "python3", "-c", CLIENT, base, here.token, CELL]).out
        took_s = here.waited_s + time.monotonic() - began
        is_busy = os.getloadavg()[0] > 2 * (os.cpu_count() or 1)  # with other work, too
        print(f"\n{runtime}: from the allocation to the executed cell {took_s:.1f} s{', busy' if is_busy else ''}")
        NATIVE_S.extend([took_s] if runtime == "native" else [])
        assert f"42 {here.job} dgx0" in out
        assert ssh or is_busy or min(NATIVE_S) <= MOST_S
        here.assert_closed_to_others(TIMES, 403, f"{base}/api/contents?token={here.token}")


def test_tensorboard_has_the_token_in_every_path(runner: Runner, cluster: Box, packages: Path) -> None:
    words = ("--env", f"PYTHONPATH={packages}", "--tensorboard", "logs")
    with served(cluster, runner, "native", None, *words) as here:
        assert here.get(f"{here.url}data/logdir") == (200, f'{{"logdir": "{here.run.parents[1]}/logs"}}')
        here.assert_closed_to_others(TIMES, 404, here.url)
