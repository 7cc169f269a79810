"""Scripts for this machine, run by a real bash with recorders in the place of the container and of the launcher."""

import json
import os
import subprocess
import tempfile
from functools import cache
from pathlib import Path

from runner.backends.runtimes import runtime
from runner.backends.schedulers import render
from runner.core.errors import UsageError
from runner.jobs.directory import write_script
from runner.model.plan import PlannedImage
from runner.model.request import Mount, Recipe, Request
from runner.model.site import NodeShape, Site
from runner.model.step import JobScript
from runner.planning.plan import plan

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


def script(request: Request, via: str = "native", image: str = "/i.sqsh") -> JobScript:
    planned = plan(RECIPE, SITE, request, PlannedImage("i", "sha256:ab", image))
    return render(planned, runtime(via).step(planned))


def executed(script: JobScript, **extra: str) -> tuple[list[bytes], dict[bytes, bytes]]:
    """Run a script in a run directory of its own; returns the words of rank 1 and its environment."""
    with tempfile.TemporaryDirectory() as name:
        run = Path(name) / "a run's $dir"
        (run / "logs").mkdir(parents=True)
        (run / "recipe").mkdir()
        write_script(run, script)
        env = {"PATH": f"{stubs()}:{os.environ['PATH']}", "HOME": name, **extra}
        done = subprocess.run(["/bin/bash", run / "job.sh"], env=env, capture_output=True, check=False, timeout=60)
        assert done.returncode == 0, done.stderr
        assert json.loads((run / "exit.json").read_text())["exit"] == 0
        assert json.loads((run / "exit.json").read_text())["job"] == (run / "job.id").read_text().strip()
        words = (Path(name) / "words.1").read_bytes().split(b"\0")[:-1]
        pairs = (Path(name) / "environment.1").read_bytes().split(b"\0")[:-1]
        return words, dict((key, value) for key, _, value in (pair.partition(b"=") for pair in pairs))


def arrives_or_is_refused(
    via: str, arguments: list[str], env: dict[str, str], option: str, mounts: list[str], image: str
) -> bool:
    """Assert that each value arrives unchanged, or is refused with its option; says whether it arrived."""
    request = Request(
        gpus=2,
        mounts=tuple(Mount(path, path) for path in mounts),
        env=tuple(env.items()),
        options=(("note", option),),
        arguments=tuple(arguments),
    )
    try:
        made = script(request, via, image)
    except UsageError as error:
        bad = "\n" if via == "native" else ":\n"
        assert any(c in path for path in mounts for c in bad) or "mount" in error.where, error
        return False
    words, environment = executed(made)
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
    return True
