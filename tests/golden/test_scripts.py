"""Whole scripts, compared byte for byte; real bash and shellcheck read them.

After a deliberate change: ``pytest tests/golden --update-goldens``, and read the diff as you would a job's script.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from runner.sites.loader import names, read_site
from tests.support.golden_jobs import CASES, SCRIPTS, golden, script
from tests.support.squashfs import SUPERBLOCK


@pytest.mark.parametrize("name", CASES)
def test_the_script_is_the_golden_one(name: str, pytestconfig: pytest.Config) -> None:
    if pytestconfig.getoption("--update-goldens"):
        golden(name).write_text(script(name))
    assert script(name) == golden(name).read_text()


def test_no_golden_is_left_over() -> None:
    assert set(SCRIPTS.iterdir()) == {golden(name) for name in CASES}


def test_every_way_of_every_site_has_a_golden_script() -> None:
    apart = ("slurm", "local", "hosts")  # no site of its own; test_local_scripts.py
    shipped = {(name, via) for name in names() if name not in apart for via in read_site(name).runtimes}
    assert shipped <= {(site, via) for site, via, _ in CASES.values()}


@pytest.mark.parametrize("name", CASES)
def test_bash_and_shellcheck_take_it(name: str) -> None:
    assert subprocess.run(["bash", "-n", golden(name)], capture_output=True, check=False).returncode == 0
    # SC2016: single quotes that do not expand are what we want. SC1091: a site's /etc/profile is not here. SC2329: a
    # function that a trap calls. The rest stays on.
    checked = subprocess.run(
        ["shellcheck", "--shell=bash", "--exclude=SC2016,SC1091,SC2329", golden(name)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert checked.stdout == ""
    assert checked.returncode == 0


def test_the_script_is_a_function_of_the_plan_only(tmp_path: Path) -> None:
    """From another directory, user, clock, locale and login environment it is the same, to the byte."""
    image = tmp_path / "x.sqsh"
    image.write_bytes(SUPERBLOCK)
    request = ["submit", "--gpus", "16", "--site", "technion", "--dry-run", "--image"]
    words = [sys.executable, "-m", "runner", *request, str(image)]
    root = str(Path(__file__).parents[2])
    other = {"HOME": "/nowhere", "USER": "elvis", "TZ": "Asia/Tokyo", "LANG": "tr_TR.UTF-8", "SLURM_JOB_ID": "7"}
    here, there = (
        subprocess.run(words, capture_output=True, check=True, cwd=cwd, env={"PYTHONPATH": root, **env}).stdout
        for cwd, env in ((root, {"PATH": "/usr/bin"}), (tmp_path, {**other, "PATH": "/bin"}))
    )
    assert here == there
    assert here.startswith(b"#!/bin/bash\n")
