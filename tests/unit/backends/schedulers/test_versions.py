"""Which versions ran: asked on the side by the job's own script, and never waited for."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import msgspec
import pytest

from runner.backends.schedulers import versions
from tests.support.plans import PLAN

PYXIS = msgspec.structs.replace(PLAN, runtime="pyxis", scheduler="slurm")


def programs(directory: Path, **bodies: str) -> dict[str, str]:
    """The environment of a node that has these programs."""
    for name, body in bodies.items():
        path = directory / "bin" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"#!/bin/sh\n{body}\n")
        path.chmod(0o755)
    return {"PATH": f"{directory}/bin:/usr/bin:/bin"}


def written(directory: Path, env: dict[str, str], lines: int) -> list[str]:
    """What the script leaves, once it is that much."""
    (code,) = versions.record(PYXIS)
    subprocess.run(["/bin/bash", "-euo", "pipefail", "-c", code], cwd=directory, env=env, check=True, timeout=5)
    file = directory / "versions"
    deadline = time.monotonic() + 20
    while not (file.exists() and len(file.read_text().splitlines()) == lines) and time.monotonic() < deadline:
        time.sleep(0.05)
    return file.read_text().splitlines()


def test_of_each_program_the_first_line_counts(tmp_path: Path) -> None:
    env = programs(tmp_path, srun="echo slurm 22.05.8; echo more", enroot='[ "$1" = version ] && echo 4.1.2 >&2')
    assert written(tmp_path, env, 2) == ["slurm\tslurm 22.05.8", "enroot\t4.1.2"]


def test_a_warning_before_the_version_is_none(tmp_path: Path) -> None:
    """Enroot is a script of bash, which warns so of a locale that the node has not."""
    warning = "echo '/bin/bash: warning: setlocale: LC_ALL: cannot change locale (en_US.UTF-8)' >&2"
    env = programs(tmp_path, srun="echo slurm 22.05.8", enroot=f"{warning}; echo 4.1.2")
    assert written(tmp_path, env, 2) == ["slurm\tslurm 22.05.8", "enroot\t4.1.2"]


def test_a_program_that_fails_or_is_not_there_tells_no_version(tmp_path: Path) -> None:
    env = programs(tmp_path, srun="echo no version of mine; exit 3", enroot="echo 4.1.2")
    assert written(tmp_path, env, 1) == ["enroot\t4.1.2"]


def test_a_program_that_hangs_holds_nothing_up(tmp_path: Path) -> None:
    env = programs(tmp_path, srun="exec sleep 60", enroot="echo 4.1.2")
    began = time.monotonic()
    (code,) = versions.record(PYXIS)
    subprocess.run(["/bin/bash", "-c", code], cwd=tmp_path, env=env, check=True, timeout=5)
    assert time.monotonic() - began < 5


@pytest.mark.parametrize(
    ("scheduler", "runtime", "some"), [("local", "native", False), ("local", "charliecloud", True)]
)
def test_where_there_is_nothing_to_ask_the_script_asks_nothing(scheduler: str, runtime: str, some: bool) -> None:
    plan = msgspec.structs.replace(PLAN, scheduler=scheduler, runtime=runtime)
    assert bool(versions.record(plan)) is some
