"""Scripts for this machine, run by a real bash with recorders in the place of the container and of the launcher."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from functools import cache
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from runner.errors import UsageError
from runner.model.plan import PlannedImage
from runner.model.recipe import Recipe
from runner.model.request import Mount, Request
from runner.model.site import NodeShape, Site
from runner.planning.plan import plan
from runner.runtimes import runtime
from runner.schedulers import render
from tests.support.hostile import HOSTILE, NAME, PATH

RECIPE = Recipe(name="r", description="", image="i", program=("python3", "main.py"), options={"note": "x"})
SITE = Site(
    name="s", description="", scheduler="local", runtimes=("native",), node=NodeShape(cores=8, memory_mb=1, gpus=4)
)

_RECORD = """#!/bin/bash
# Keeps the words of a rank's call and its environment, NUL-separated.
printf '%s\\0' "$@" >"$HOME/words.$RANK"
env -0 >"$HOME/environment.$RANK"
"""


@cache
def stubs() -> Path:
    directory = Path(tempfile.mkdtemp(prefix="runner-stubs-"))
    for name in ("ch-run", "python3"):
        (directory / name).write_text(_RECORD)
        (directory / name).chmod(0o755)
    return directory


def script(request: Request, via: str = "native", image: str = "/i.sqsh") -> str:
    planned = plan(RECIPE, SITE, request, PlannedImage("i", "sha256:ab", image))
    return render(planned, runtime(via).step(planned))


def executed(text: str, **extra: str) -> tuple[list[bytes], dict[bytes, bytes]]:
    """Run a script in a run directory of its own; returns the words of rank 1 and its environment."""
    with tempfile.TemporaryDirectory() as name:
        run = Path(name) / "a run's $dir"
        (run / "logs").mkdir(parents=True)
        (run / "recipe").mkdir()
        (run / "job.sh").write_bytes(text.encode("utf-8", "surrogateescape"))
        env = {"PATH": f"{stubs()}:{os.environ['PATH']}", "HOME": name, **extra}
        done = subprocess.run(["/bin/bash", run / "job.sh"], env=env, capture_output=True, check=False, timeout=60)
        assert done.returncode == 0, done.stderr
        assert json.loads((run / "exit.json").read_text())["exit"] == 0
        assert json.loads((run / "exit.json").read_text())["job"] == (run / "job.id").read_text().strip()
        words = (Path(name) / "words.1").read_bytes().split(b"\0")[:-1]
        pairs = (Path(name) / "environment.1").read_bytes().split(b"\0")[:-1]
        return words, dict((key, value) for key, _, value in (pair.partition(b"=") for pair in pairs))


@pytest.mark.parametrize("via", ["native", "charliecloud"])
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    arguments=st.lists(HOSTILE, max_size=4),
    env=st.dictionaries(NAME, HOSTILE, max_size=3),
    option=HOSTILE,
    mounts=st.lists(PATH.filter(lambda path: path.strip("/.") != ""), max_size=2, unique=True),
    image=PATH,
)
def test_what_the_user_gave_arrives_or_is_refused(
    via: str, arguments: list[str], env: dict[str, str], option: str, mounts: list[str], image: str
) -> None:
    request = Request(
        gpus=2,
        mounts=tuple(Mount(path, path) for path in mounts),
        env=tuple(env.items()),
        options=(("note", option),),
        arguments=tuple(arguments),
    )
    try:
        text = script(request, via, image)
    except UsageError as error:
        bad = "\n" if via == "native" else ":\n"
        assert any(c in path for path in mounts for c in bad) or "mount" in error.where, error
        return
    words, environment = executed(text)
    expected = [os.fsencode(argument) for argument in arguments]
    assert words[len(words) - len(expected) :] == expected
    shown = os.fsencode(option)
    assert (b"--note=" + shown if shown.startswith(b"-") else shown) in words
    for name, value in env.items():
        assert environment[(b"" if via == "native" else b"RUNNER_ENV_") + name.encode()] == os.fsencode(value)
    if via == "charliecloud":
        assert os.fsencode(image) in words
        for path in mounts:
            assert os.fsencode(f"{path}:{path}") in words


def test_a_container_sees_nothing_of_a_dirty_shell_and_a_native_program_all_but_another_tasks_place() -> None:
    dirty = {
        "PYTHONPATH": "/x",
        "LD_PRELOAD": "",
        "OMPI_MCA_btl": "tcp",
        "CONDA_PREFIX": "/c",
        "http_proxy": "http://x/",
        "BASH_FUNC_f%%": "() { true; }",
    }
    place = {"SLURM_PROCID": "3", "PMIX_RANK": "3", "OMPI_COMM_WORLD_RANK": "3", "RUNNER_RDV_HOST": "x"}
    clean = {
        via: {name for name in executed(script(Request(gpus=2), via))[1] if name != b"_"}
        for via in ("native", "charliecloud")
    }
    contained = executed(script(Request(gpus=2), "charliecloud"), **dirty, **place)[1]
    assert set(contained) - {b"_"} == clean["charliecloud"]
    native = executed(script(Request(gpus=2)), **dirty, **place)[1]
    assert set(native) - {b"_"} == clean["native"] | {name.encode() for name in dirty}
    assert native[b"RUNNER_RDV_HOST"] == b"127.0.0.1"


@pytest.mark.parametrize(
    ("request_", "says"),
    [
        (Request(gpus=1, queue="q"), "--queue"),
        (Request(gpus=1, mounts=(Mount("/a", "/b"),)), "--mount"),
        (Request(gpus=1, mounts=(Mount("/a", "/a", read_only=True),)), "--mount"),
    ],
)
def test_what_this_machine_cannot_do_is_refused(request_: Request, says: str) -> None:
    with pytest.raises(UsageError) as caught:
        script(request_)
    assert says in caught.value.where


def test_a_program_of_ones_own_starts_in_its_directory() -> None:
    here = Request(gpus=2, directory="/tmp")
    assert executed(script(here))[1][b"PWD"] == b"/tmp"
    contained = executed(script(here, "charliecloud"))[0]
    assert b"/tmp:/workspace" in contained
    assert contained[contained.index(b"--cd") + 1] == b"/workspace"


def test_another_directory_may_be_mounted_in_its_place() -> None:
    request = Request(gpus=2, directory="/tmp", mounts=(Mount("/var", "/workspace"),))
    contained = executed(script(request, "charliecloud"))[0]
    assert b"/var:/workspace" in contained
    assert b"/tmp:/workspace" not in contained
