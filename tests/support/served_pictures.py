"""The pictures of docs/jobs.md: what ``serve`` serves from a node of the box, through its tunnel in a real browser.

``python -m tests.support.served_pictures`` makes them anew, in a box of its own.
"""

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from PIL import Image

from runner.box import Box
from tests.support.browser import Tab, tab
from tests.support.commands import Runner, ran
from tests.support.daemons import own_box
from tests.support.tunnels import Served, served
from tests.support.users import open_directory
from tests.support.waiting import until

DOCS = Path(__file__).parents[2] / "docs"
MOST_BYTES = 60_000  # of a picture
JUPYTER = ("jupyterlab==4.6.6", "jupyter_server==2.21.1", "ipykernel==7.4.0", "jupyter-kernel-client==1.0.2")
PACKAGES = (*JUPYTER, "tensorboard==2.21.0", "setuptools==80.9.0")
_NO_NEWS = '{"@jupyterlab/apputils-extension:notification": {"fetchNews": "false"}}'  # nor a question about them
_RUN, _FILES = "[data-command='notebook:run-cell-and-select-next']", ".jp-SideBar [data-id='filebrowser']"  # buttons
_SETTINGS = "[aria-label='Close side pane']"
# A line fitted by gradient descent, and where: as a person's cell, and as a program that writes for TensorBoard.
_FIT = """\
import os
import numpy as np

x = np.linspace(-1, 1, 64)
y, slope, losses = 3 * x + 1 + 0.1 * np.sin(40 * x), np.zeros(2), []
for step in range(40):
    error = slope[0] * x + slope[1] - y
    slope -= 0.2 * np.array([(error * x).mean(), error.mean()])
    losses.append((error**2).mean())
"""
CELL = f"""\
{_FIT}
print(f"loss {{losses[0]:.2f}} -> {{losses[-1]:.2f}}")
print("on", os.environ["SLURMD_NODENAME"], "in job", os.environ["SLURM_JOB_ID"])"""
_PROGRAM = f"""\
{_FIT}
from tensorboard.summary import Writer
writer = Writer("logs/" + os.environ["SLURMD_NODENAME"])
for step, loss in enumerate(losses):
    writer.add_scalar("loss", loss, step)
writer.close()
"""


@contextmanager
def packages() -> Iterator[Path]:
    """Jupyter and TensorBoard, for this Python and the image's, which are of one version."""
    with open_directory() as directory:
        ran(["/usr/bin/env", "pip", "install", "--quiet", "--target", directory, *PACKAGES], timeout_s=1200)
        settings = directory / "share/jupyter/lab/settings"
        settings.mkdir()
        (settings / "overrides.json").write_text(_NO_NEWS)
        yield directory


def environment(packages: Path) -> tuple[str, ...]:
    """The options with which a job finds them."""
    return ("--env", f"PYTHONPATH={packages}", "--env", f"JUPYTERLAB_DIR={packages}/share/jupyter/lab")


def notebook(browser: Tab, here: Served) -> tuple[str, bytes]:
    """Opens a notebook, runs its cell, and waits for what it prints; returns that, and the picture."""
    cell: dict[str, Any] = {
        "cell_type": "code",
        "id": "fit",
        "metadata": {},
        "source": CELL,
        "outputs": [],
        "execution_count": None,
    }
    metadata = {"kernelspec": {"name": "python3", "display_name": "Python 3 (ipykernel)", "language": "python"}}
    content = {"cells": [cell], "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}
    (here.run.parents[1] / "fit.ipynb").write_text(json.dumps(content))
    browser.open(here.url.replace("/?", "/doc/tree/fit.ipynb?"), 900, "light", 560)
    kernel = "document.querySelector('.jp-Notebook-ExecutionIndicator-tooltip')?.textContent.includes('Idle')"
    until(lambda: browser.evaluate(kernel), "its kernel")
    said = _clicking(browser, _RUN, "document.querySelector('.jp-OutputArea-output pre')?.innerText")
    _clicking(browser, _FILES, "!document.querySelector('#jp-left-stack').checkVisibility()")
    return said, _at_rest(browser, here)


def _clicking(browser: Tab, selector: str, what: str) -> Any:
    """Clicks until it has an effect: early clicks have none."""

    def look() -> Any:
        if not (seen := browser.evaluate(what)):
            browser.click(selector)
        return seen

    return until(look, what, every_s=3)


def _at_rest(browser: Tab, here: Served) -> bytes:
    """The picture once nothing moves any more, of few colours; it shows no token."""
    assert here.token not in browser.evaluate("document.body.innerText")
    seen = [b"", b"."]
    while seen[-1] != seen[-2]:
        time.sleep(1)
        seen.append(browser.picture())
    made = BytesIO()
    Image.open(BytesIO(seen[-1])).convert("RGB").quantize(48, dither=Image.Dither.NONE).save(made, "PNG", optimize=True)
    return made.getvalue()


def tensorboard(browser: Tab, here: Served, runner: Runner, *env: str) -> tuple[str, bytes]:
    """Opens TensorBoard, which shows the losses of a job; returns the text of the page, and the picture."""
    home = here.run.parents[1]
    (home / "fit.py").write_text(_PROGRAM)
    words = ("--force", "environment-lacks", "--wait", "--", "python3", "fit.py")  # it has them by PYTHONPATH
    runner("submit", "--gpus", "1", "--runtime", "native", *env, *words, code=0, cwd=home)
    browser.open(here.url, 900, "light", 560)
    axis = "[...document.querySelectorAll('line-chart text')].some(text => text.textContent.trim() === '20')"
    until(lambda: browser.evaluate(axis), "the axis of its steps")
    _clicking(browser, _SETTINGS, f'!document.querySelector("{_SETTINGS}")')
    return browser.evaluate("document.body.innerText"), _at_rest(browser, here)


def _make(box: Box, directory: Path, modules: Path) -> None:
    runner, env = Runner.at(box.site, directory, box.bin_dir), environment(modules)
    with tab() as browser, served(box, runner, "native", True, *env, "--notebook") as here:
        (DOCS / "notebook.png").write_bytes(notebook(browser, here)[1])
    with tab() as browser, served(box, runner, "native", True, *env, "--tensorboard", "logs") as here:
        (DOCS / "tensorboard.png").write_bytes(tensorboard(browser, here, runner, *env)[1])


if __name__ == "__main__":
    with own_box("pictures") as box, TemporaryDirectory() as directory, packages() as modules:
        _make(box, Path(directory), modules)
