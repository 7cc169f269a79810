"""Whole scripts, compared byte for byte; real bash and shellcheck read them.

After a deliberate change: ``pytest tests/golden --update-goldens``, and read the diff as you would a job's script.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from runner.model.plan import PlannedImage
from runner.model.request import Mount, Request
from runner.planning.plan import plan
from runner.recipes.loader import read_recipe
from runner.runtimes import runtime
from runner.schedulers.slurm_script import render
from runner.sites.loader import read_site

SCRIPTS = Path(__file__).parent / "scripts"
IMAGE = PlannedImage(
    reference="gpu-runner/horovod-pytorch:25.02-py3",
    digest="sha256:1f0ce1d2a3b4c5d6e7f8091a2b3c4d5e6f708192a3b4c5d6e7f8091a2b3c4d5e6",
    path="/lustre/u/images/sha256-1f0ce1d2a3b4.sqsh",
)
TRAIN = read_recipe("horovod-pytorch").recipe
HOSTILE = Request(
    gpus=16,
    mounts=(Mount("/data/My 'Sets'", "/data set", read_only=True), Mount("/scratch/(id);x&y#*", "/scratch")),
    env=(("NOTE", 'it\'s "quoted" $HOME `id` \\ # % é'), ("LINES_", "one\ntwo\t*")),
    options=(("model", "a b'c"), ("seed", "-1")),
    arguments=("--note", "$(touch /tmp/x); 'q' \"d\"", "", "-n", "*"),
    account="m1234_g",
)

CASES: dict[str, tuple[str, str, Request]] = {
    "technion-16": ("technion", "pyxis", Request(gpus=16)),
    "technion-2": ("technion", "pyxis", Request(gpus=2, walltime_s=600)),
    "technion-13-uneven": ("technion", "pyxis", Request(gpus=13)),
    "technion-hostile": ("technion", "pyxis", HOSTILE),
    "box-16": ("box", "charliecloud", Request(gpus=16)),
    "box-hostile": (
        "box",
        "charliecloud",
        msgspec.structs.replace(HOSTILE, mounts=(Mount("/data/My Sets/$HOME", "/data set"),)),
    ),
    "box-pyxis-16": ("box", "pyxis", Request(gpus=16)),
}


def script(name: str) -> str:
    site, via, request = CASES[name]
    planned = plan(TRAIN, read_site(site), msgspec.structs.replace(request, runtime=via), IMAGE)
    return render(planned, runtime(via).step(planned))


@pytest.mark.parametrize("name", CASES)
def test_the_script_is_the_golden_one(name: str, pytestconfig: pytest.Config) -> None:
    golden = SCRIPTS / f"{name}.sbatch"
    if pytestconfig.getoption("--update-goldens"):
        golden.write_text(script(name))
    assert script(name) == golden.read_text()


def test_no_golden_is_left_over() -> None:
    assert {path.stem for path in SCRIPTS.iterdir()} == set(CASES)


@pytest.mark.parametrize("name", CASES)
def test_bash_and_shellcheck_take_it(name: str) -> None:
    golden = SCRIPTS / f"{name}.sbatch"
    assert subprocess.run(["bash", "-n", golden], capture_output=True, check=False).returncode == 0
    # SC2016: single quotes that do not expand are what we want. SC2164/SC2034 and the rest stay on.
    checked = subprocess.run(
        ["shellcheck", "--shell=bash", "--exclude=SC2016", golden], capture_output=True, text=True, check=False
    )
    assert checked.stdout == ""
    assert checked.returncode == 0


def test_the_script_is_a_function_of_the_plan_alone(tmp_path: Path) -> None:
    """From another directory, user, clock, locale and login environment it is the same, to the byte."""
    image = tmp_path / "x.sqsh"
    image.write_bytes(b"hsqs" + bytes(92))
    request = ["submit", "--gpus", "16", "--site", "technion", "--dry-run", "--image"]
    words = [sys.executable, "-m", "runner", *request, str(image)]
    root = str(Path(__file__).parents[2])
    other = {"HOME": "/nowhere", "USER": "somebody", "TZ": "Asia/Tokyo", "LANG": "tr_TR.UTF-8", "SLURM_JOB_ID": "7"}
    here, there = (
        subprocess.run(words, capture_output=True, check=True, cwd=cwd, env={"PYTHONPATH": root, **env}).stdout
        for cwd, env in ((root, {"PATH": "/usr/bin"}), (tmp_path, {**other, "PATH": "/bin"}))
    )
    assert here == there
    assert here.startswith(b"#!/bin/bash\n")
