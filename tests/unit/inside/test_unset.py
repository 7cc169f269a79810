"""The launcher's program does not get the variables that the user has taken away."""

from __future__ import annotations

import os
import subprocess
import sys

from runner.core import paths


def test_the_program_has_none_of_them_wherever_they_came_from() -> None:
    env = {"PATH": os.environ["PATH"], "OF_THE_IMAGE": "1", "KEPT": "a b", "TMPDIR": "/tmp"}
    launcher = (sys.executable, str(paths.share("recipes") / "lib/launch.py"), "--world", "1")
    words = (*launcher, "--unset", "OF_THE_IMAGE,CUDA_DEVICE_ORDER,NOT_SET", "--", "env", "-0")
    done = subprocess.run(words, env=env, capture_output=True, text=True, check=True)
    seen = dict(line.partition("=")[::2] for line in done.stdout.split("\0"))
    assert seen["KEPT"] == "a b"
    assert not {"OF_THE_IMAGE", "CUDA_DEVICE_ORDER", "NOT_SET"} & set(seen)
