"""Scripts for this machine and for a list of hosts, run by a real bash: an ssh that records its words and starts its
bash here, recorders in the place of the container and of the launcher.
"""

import json
import os
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from runner.backends.runtimes import common, runtime
from runner.backends.schedulers import render
from runner.core.errors import UsageError
from runner.model.plan import PlannedImage
from runner.model.request import Request
from runner.model.site import NodeShape, Site
from runner.model.step import JobScript
from runner.planning.placement import parse_hosts, with_hosts
from runner.planning.plan import plan
from runner.sites.loader import read_site
from tests.support import recording

HERE = Site(
    name="s", description="", scheduler="local", runtimes=("native",), node=NodeShape(cores=8, memory_mb=1, gpus=4)
)
HOSTS = with_hosts(read_site("hosts"), parse_hosts("me@nodea:2,nodeb:1"))
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
    return recording.stubs({"ssh": _SSH} | dict.fromkeys(("ch-run", "apptainer", "python3"), recording.RECORD))


def script(request: Request, via: str = "native", image: str = "/i.sqsh", site: Site = HERE) -> JobScript:
    planned = plan(recording.RECIPE, site, request, PlannedImage("i", "sha256:ab", image))
    return render(planned, common.staged_step(planned, runtime(via)))


def executed(script: JobScript, by_ssh: bool = False, /, **extra: str) -> Ran:
    home = {"HOME": "/submitter", "RECORD": "{records}"} if by_ssh else {"HOME": "{records}"}
    with recording.ran(script, stubs(), home | extra) as (kept, run):
        marker = json.loads((run / "exit.json").read_text())
        assert (marker["exit"], marker["job"]) == (0, (run / "job.id").read_text().strip())
        ranks = [int(match[1]) for path in kept.iterdir() if (match := re.fullmatch(r"words\.(\d+)", path.name))]
        return Ran(
            recording.split(kept / "ssh") if by_ssh else [],
            {rank: recording.split(kept / f"words.{rank}") for rank in ranks},
            {rank: recording.environment(kept / f"environment.{rank}") for rank in ranks},
        )


def arrives_or_is_refused(
    via: str,
    arguments: list[str],
    env: dict[str, str],
    option: str,
    mounts: list[str],
    image: str,
    here: str | None = None,
) -> bool:
    """Assert that each value arrives unchanged, or is refused with its option; says whether it arrived.

    ``here``: the job is one of hosts, and this the value of a variable of the submitting shell; nothing of it all is on
    ssh's command line.
    """
    request = recording.request(2 if here is None else 3, arguments, env, option, zip(mounts, mounts, strict=True))
    try:
        made = script(request, via, image, HERE if here is None else HOSTS)
    except UsageError as error:
        recording.check_refused(error, via, mounts)
        return False
    ran = executed(made) if here is None else executed(made, True, HERE=here)
    ours = (b"exec bash -s", b"me@nodea", b"nodeb", b"--", b"-G", b"-T", b"-x", b"-o")
    assert all(word in ours or word.count(b"=") == 1 for word in ran.ssh)
    expected, shown = [os.fsencode(argument) for argument in arguments], os.fsencode(option)
    in_container = [image, *(f"{path}:{path}" for path in mounts)] if via == "charliecloud" else []
    assert sorted(ran.words) == list(range(request.gpus))
    for rank, words in ran.words.items():
        assert words[len(words) - len(expected) :] == expected
        assert {b"--note=" + shown if shown.startswith(b"-") else shown, *map(os.fsencode, in_container)} <= set(words)
        for name, value in env.items():
            carried = (b"" if via == "native" else b"RUNNER_ENV_") + name.encode()
            assert ran.environment[rank][carried] == os.fsencode(value)
        if here is not None:
            assert ran.environment[rank].get(b"HERE") == (os.fsencode(here) if via == "native" else None)
    return True
