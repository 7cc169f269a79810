"""Scripts for a list of hosts, run by a real bash: an ssh that records its words and starts its bash here, recorders in
the place of the container and of the launcher.
"""

import json
import os
import subprocess
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from runner.backends.runtimes import common, runtime
from runner.backends.schedulers import render
from runner.core.errors import UsageError
from runner.jobs.directory import write_script
from runner.model.plan import PlannedImage
from runner.model.request import Mount, Recipe, Request
from runner.model.step import JobScript
from runner.planning.placement import parse_hosts, with_hosts
from runner.planning.plan import plan
from runner.sites.loader import read_site

RECIPE = Recipe(name="r", description="", image="i", program=("python3", "main.py"), options={"note": "x"})
SITE = with_hosts(read_site("hosts"), parse_hosts("me@nodea:2,nodeb:1"))
# What a node's login shell finds is not what the submitting shell has: HOME, USER, and one of its own.
_SSH = """#!/bin/bash
printf '%s\\0' "$@" >>"$RECORD/ssh"
case "$*" in *' -G '*) echo 'user me'; echo 'hostname 10.0.0.1'; exit ;; esac
while [ "$1" != -- ]; do shift; done
exec env -i PATH="$PATH" RECORD="$RECORD" HOME="$RECORD" USER=me ON_NODE="$2" SHELL=/bin/bash bash -c "$3"
"""
_RECORD = """#!/bin/bash
printf '%s\\0' "$@" >"$HOME/words.$RANK"
env -0 >"$HOME/environment.$RANK"
"""


@dataclass(frozen=True)
class Ran:
    """What has arrived, as bytes: the words of all calls of ssh; of each rank its words and its environment."""

    ssh: list[bytes]
    words: dict[int, list[bytes]]
    environment: dict[int, dict[bytes, bytes]]


@cache
def stubs() -> Path:
    directory = Path(tempfile.mkdtemp(prefix="runner-stubs-"))
    for name, text in {"ssh": _SSH, "ch-run": _RECORD, "apptainer": _RECORD, "python3": _RECORD}.items():
        (directory / name).write_text(text)
        (directory / name).chmod(0o755)
    return directory


def script(request: Request, via: str = "native", image: str = "/i.sqsh") -> JobScript:
    planned = plan(RECIPE, SITE, request, PlannedImage("i", "sha256:ab", image))
    return render(planned, common.staged_step(planned, runtime(via)))


def executed(script: JobScript, **extra: str) -> Ran:
    """Run a script in a run directory of its own, with an awkward name."""
    with tempfile.TemporaryDirectory() as name:
        run = Path(name) / "a run's $dir"
        (run / "logs").mkdir(parents=True)
        (run / "recipe").mkdir()
        write_script(run, script)
        env = {"PATH": f"{stubs()}:{os.environ['PATH']}", "HOME": "/submitter", "RECORD": name, **extra}
        done = subprocess.run(["/bin/bash", run / "job.sh"], env=env, capture_output=True, check=False, timeout=60)
        said = done.stderr + b"".join(path.read_bytes() for path in (run / "logs").iterdir())
        assert done.returncode == 0, said
        assert json.loads((run / "exit.json").read_text())["job"] == (run / "job.id").read_text().strip()
        words = {rank: _split(Path(name) / f"words.{rank}") for rank in range(3)}
        pairs = {rank: _split(Path(name) / f"environment.{rank}") for rank in range(3)}
        environment = {
            rank: dict((key, value) for key, _, value in (pair.partition(b"=") for pair in pairs[rank]))
            for rank in pairs
        }
        return Ran(_split(Path(name) / "ssh"), words, environment)


def _split(path: Path) -> list[bytes]:
    return path.read_bytes().split(b"\0")[:-1]


def arrives_or_is_refused(
    via: str, arguments: list[str], env: dict[str, str], here: str, option: str, mounts: list[str], image: str
) -> bool:
    """Assert that each value arrives unchanged, or is refused with its option; says whether it arrived.

    Nothing of it is on ssh's command line; ``here`` is a variable of the submitting shell.
    """
    request = Request(
        gpus=3,
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
    ran = executed(made, HERE=here)
    ours = (b"exec bash -s", b"me@nodea", b"nodeb", b"--", b"-G", b"-T", b"-x", b"-o")
    assert all(word in ours or word.count(b"=") == 1 for word in ran.ssh)
    expected = [os.fsencode(argument) for argument in arguments]
    for rank in range(3):
        assert ran.words[rank][len(ran.words[rank]) - len(expected) :] == expected
        for name, value in env.items():
            carried = (b"" if via == "native" else b"RUNNER_ENV_") + name.encode()
            assert ran.environment[rank][carried] == os.fsencode(value)
        assert ran.environment[rank].get(b"HERE") == (os.fsencode(here) if via == "native" else None)
    return True
