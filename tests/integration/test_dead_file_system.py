"""A network file system that hangs: no check waits for it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.integration
ROOT = Path(__file__).resolve().parents[2]
MOUNTER = ROOT / "tests" / "support" / "dead_mount.py"


def start(dead: Path, *words: str, home: str = "/") -> subprocess.Popen[str]:
    """The command line beside a file system at ``dead`` that never answers."""
    argv = ["unshare", "--map-root-user", "--mount", sys.executable, str(MOUNTER), str(dead)]
    argv += [sys.executable, "-m", "runner", *words]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "HOME": home}
    return subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env)


def test_a_submission_says_which_file_system_does_not_answer(tmp_path: Path) -> None:
    """As the place of runs, of data, of the image, and as a home; with a real mount that no process serves."""
    dead = tmp_path / "dead"
    dead.mkdir()
    words = ("submit", "--site", "neuron", "--recipe", "probe", "--gpus", "8", "--dry-run")
    places = {
        f"{dead}/runs": ("--runs", f"{dead}/runs"),
        f"{dead}/data": ("--mount", f"{dead}/data:/data", "--runs", str(tmp_path / "runs")),
        f"{dead}/x.sif": ("--image", f"{dead}/x.sif", "--runs", str(tmp_path / "runs")),
    }
    began = time.monotonic()
    asked = {place: start(dead, *words, *more) for place, more in places.items()}
    asked[str(dead)] = start(dead, *words, "--runs", str(tmp_path / "runs"), home=str(dead))
    for place, child in asked.items():
        out, err = child.communicate(timeout=60)
        assert child.returncode == 3, err
        assert f"the file system of {place} has not answered for 5 s" in err
        assert out == ""
    assert time.monotonic() - began < 40
