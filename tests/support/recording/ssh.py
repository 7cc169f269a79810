"""Scripts for a list of hosts, run by a real bash: an ssh that records its words and starts its bash here, recorders in
the place of the container and of the launcher.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from runner.backends.runtimes import common, runtime
from runner.backends.schedulers import render
from runner.core.errors import UsageError
from runner.model.plan import PlannedImage
from runner.model.request import Request
from runner.model.step import JobScript
from runner.planning.placement import parse_hosts, with_hosts
from runner.planning.plan import plan
from runner.sites.loader import read_site
from tests.support import recording

SITE = with_hosts(read_site("hosts"), parse_hosts("me@nodea:2,nodeb:1"))

# What a node's login shell finds is not what the submitting shell has: HOME, USER, and one of its own.
_SSH = """#!/bin/bash
printf '%s\\0' "$@" >>"$RECORD/ssh"
case "$*" in *' -G '*) echo 'user me'; echo 'hostname 10.0.0.1'; exit ;; esac
while [ "$1" != -- ]; do shift; done
exec env -i PATH="$PATH" RECORD="$RECORD" HOME="$RECORD" USER=me ON_NODE="$2" SHELL=/bin/bash bash -c "$3"
"""


@dataclass(frozen=True)
class Ran:
    """What has arrived, as bytes: the words of all calls of ssh; of each rank its words and its environment."""

    ssh: list[bytes]
    words: dict[int, list[bytes]]
    environment: dict[int, dict[bytes, bytes]]


@cache
def stubs() -> Path:
    return recording.stubs({"ssh": _SSH, **dict.fromkeys(("ch-run", "apptainer", "python3"), recording.RECORD)})


def script(request: Request, via: str = "native", image: str = "/i.sqsh") -> JobScript:
    planned = plan(recording.RECIPE, SITE, request, PlannedImage("i", "sha256:ab", image))
    return render(planned, common.staged_step(planned, runtime(via)))


def executed(script: JobScript, **extra: str) -> Ran:
    """Run a script in a run directory of its own."""
    env = {"HOME": "/submitter", "RECORD": "{records}", **extra}
    with recording.ran(script, stubs(), env) as (records, run):
        assert json.loads((run / "exit.json").read_text())["job"] == (run / "job.id").read_text().strip()
        words = {rank: recording.split(records / f"words.{rank}") for rank in range(3)}
        environment = {rank: recording.environment(records / f"environment.{rank}") for rank in range(3)}
        return Ran(recording.split(records / "ssh"), words, environment)


def arrives_or_is_refused(
    via: str, arguments: list[str], env: dict[str, str], here: str, option: str, mounts: list[str], image: str
) -> bool:
    """Assert that each value arrives unchanged, or is refused with its option; says whether it arrived.

    Nothing of it is on ssh's command line; ``here`` is a variable of the submitting shell.
    """
    try:
        made = script(recording.request(3, arguments, env, option, [(path, path) for path in mounts]), via, image)
    except UsageError as error:
        recording.check_refused(error, via, mounts)
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
