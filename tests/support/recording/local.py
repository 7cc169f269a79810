"""Scripts for this machine, run by a real bash with recorders in the place of the container and of the launcher."""

from __future__ import annotations

import json
import os
from functools import cache
from pathlib import Path

from runner.backends.runtimes import runtime
from runner.backends.schedulers import render
from runner.core.errors import UsageError
from runner.model.plan import PlannedImage
from runner.model.request import Request
from runner.model.site import NodeShape, Site
from runner.model.step import JobScript
from runner.planning.plan import plan
from tests.support import recording

SITE = Site(
    name="s", description="", scheduler="local", runtimes=("native",), node=NodeShape(cores=8, memory_mb=1, gpus=4)
)


@cache
def stubs() -> Path:
    return recording.stubs(dict.fromkeys(("ch-run", "python3"), recording.RECORD))


def script(request: Request, via: str = "native", image: str = "/i.sqsh") -> JobScript:
    planned = plan(recording.RECIPE, SITE, request, PlannedImage("i", "sha256:ab", image))
    return render(planned, runtime(via).step(planned))


def executed(script: JobScript, **extra: str) -> tuple[list[bytes], dict[bytes, bytes]]:
    """Run a script in a run directory of its own; returns the words of rank 1 and its environment."""
    with recording.ran(script, stubs(), {"HOME": "{records}", **extra}) as (records, run):
        marker = json.loads((run / "exit.json").read_text())
        assert (marker["exit"], marker["job"]) == (0, (run / "job.id").read_text().strip())
        return recording.split(records / "words.1"), recording.environment(records / "environment.1")


def arrives_or_is_refused(
    via: str, arguments: list[str], env: dict[str, str], option: str, mounts: list[str], image: str
) -> bool:
    """Assert that each value arrives unchanged, or is refused with its option; says whether it arrived."""
    try:
        made = script(recording.request(2, arguments, env, option, [(path, path) for path in mounts]), via, image)
    except UsageError as error:
        recording.check_refused(error, via, mounts)
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
