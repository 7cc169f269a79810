"""Jupyter and TensorBoard by ``serve``, in the box: a cell that a kernel on a node executes through a tunnel, natively
and in a container; both in a browser; a wrong token and another user, refused each time.
"""

import os
import sys
import time
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from textwrap import dedent

import pytest
from PIL import Image

from runner.box import Box
from runner.core.paths import cache_dir
from runner.images.store.stored_image import StoredImage
from tests.support.browser import tab
from tests.support.commands import Runner, extended, ran
from tests.support.served_pictures import DOCS, MOST_BYTES, environment, notebook, packages, tensorboard
from tests.support.tunnels import served
from tests.support.users import AS_ROOT, open_directory

pytestmark = AS_ROOT
TIMES, MOST_S = 500, 15.0
NATIVE_S: list[float] = []
CLIENT = """\
import sys
from jupyter_kernel_client import JupyterKernelClient
with JupyterKernelClient(server_url=sys.argv[1], token=sys.argv[2]) as kernel:
    print(kernel.execute(sys.argv[3]))
"""
CELL = "import os; print(6 * 7, os.environ['SLURM_JOB_ID'], os.environ['SLURMD_NODENAME'])"


@pytest.fixture(scope="module")
def modules() -> Iterator[Path]:
    with packages() as directory:
        yield directory


@pytest.mark.parametrize(("runtime", "ssh"), [("native", True), ("charliecloud", True), ("native", None)], ids=str)
def test_a_cell_is_executed_on_the_node(
    runtime: str, ssh: bool | None, runner: Runner, squashfs: StoredImage, cluster: Box, modules: Path
) -> None:
    image = () if runtime == "native" else ("--image", squashfs.digest, "--mount", f"{modules}:{modules}")
    with served(cluster, runner, runtime, ssh, *image, *environment(modules), "--notebook") as here:
        base, began = here.url.partition("/?")[0], time.monotonic()
        out = ran(["/usr/bin/env", f"PYTHONPATH={modules}", "python3", "-c", CLIENT, base, here.token, CELL]).out
        took_s = here.waited_s + time.monotonic() - began
        is_busy = os.getloadavg()[0] > 2 * (os.cpu_count() or 1)  # with other work, too
        print(f"\n{runtime}: from the allocation to the executed cell {took_s:.1f} s{', busy' if is_busy else ''}")
        NATIVE_S.extend([took_s] if runtime == "native" else [])
        assert f"42 {here.job} dgx0" in out
        assert ssh or is_busy or min(NATIVE_S) <= MOST_S
        here.assert_closed_to_others(TIMES, 403, f"{base}/api/contents?token={here.token}")


def test_tensorboard_has_the_token_in_every_path(runner: Runner, cluster: Box, modules: Path) -> None:
    with served(cluster, runner, "native", None, *environment(modules), "--tensorboard", "logs") as here:
        assert here.get(f"{here.url}data/logdir") == (200, f'{{"logdir": "{here.run.parents[1]}/logs"}}')
        here.assert_closed_to_others(TIMES, 404, here.url)


def test_the_pictures_of_the_page(runner: Runner, cluster: Box, modules: Path) -> None:
    env = environment(modules)
    with tab() as browser, served(cluster, runner, "native", True, *env, "--notebook") as here:
        printed, picture = notebook(browser, here)
        assert printed.strip() == f"loss 4.12 -> 0.02\non dgx01 in job {here.job}"
        assert_shows_much(BytesIO(picture), DOCS / "notebook.png")
    with tab() as browser, served(cluster, runner, "native", True, *env, "--tensorboard", "logs") as here:
        text, picture = tensorboard(browser, here, runner, *env)
        assert {"dgx01", "loss", "TensorBoard"} <= set(text.split())
        assert_shows_much(BytesIO(picture), DOCS / "tensorboard.png")


def test_a_kernel_for_a_sites_jupyterhub(runner: Runner, squashfs: StoredImage, modules: Path) -> None:
    """As on the page. The hub's server is a job, by itself or as a step, of which the kernel is a step."""
    shown = (
        (DOCS / "jobs.md")
        .read_text()
        .partition("**A site's JupyterHub.**")[2]
        .partition("    gpu-runner shell --ssh")[0]
    )
    commands = dedent("\n".join(line for line in shown.splitlines() if line.startswith("    ")))
    with open_directory() as cwd:
        of_image = {"env": {"PYTHONPATH": str(modules)}, "mounts": [{"source": str(modules), "target": str(modules)}]}
        site = extended(runner.site, cwd, runtimes=["charliecloud"], ways={"charliecloud": of_image})
        (cwd / "config.yaml").write_text(f"site: {site}\n")
        (cwd / "cell.py").write_text(CELL)
        (cwd / "gpu-runner").write_text(f'#!/bin/sh\nPYTHONPATH={DOCS.parent} exec {sys.executable} -m runner "$@"\n')
        (cwd / "gpu-runner").chmod(0o755)
        run = "jupyter run --kernel ours cell.py"
        (cwd / "job.sh").write_text(
            f"#!/bin/bash -e\n{commands.replace('IMAGE', squashfs.digest)}\n{run}\nsrun --cpus-per-task=2 {run}\n"
        )
        path = f"{cwd}:{modules}/bin:{runner.clients}:{Path(sys.executable).parent}:/usr/bin:/bin"
        env = {"HOME": str(cwd), "PATH": path, "PYTHONPATH": str(modules), "RUNNER_CACHE": str(cache_dir())}
        env |= {"RUNNER_CONFIG": str(cwd / "config.yaml"), "RUNNER_STATE": str(cwd / "state")}
        words = ("--wait", "--parsable", "--gpus=1", "--time=9", "--output=job.out", "job.sh")
        job = ran([runner.clients / "sbatch", *words], cwd=cwd, env=env, timeout_s=300).out.strip()
        assert (cwd / "job.out").read_text().count(f"\n42 {job} dgx0") == 2


def assert_shows_much(*pictures: BytesIO | Path) -> None:
    """None is blank, or large."""
    for each in pictures:
        picture = Image.open(each)
        counts = sorted((count for count, _colour in picture.getcolors() or ()), reverse=True)
        assert picture.mode == "P" and picture.size == (900, 560) and len(counts) > 16
        assert counts[0] < 0.9 * sum(counts)
        size = each.stat().st_size if isinstance(each, Path) else len(each.getvalue())
        assert size <= MOST_BYTES
