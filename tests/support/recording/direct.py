"""Scripts for this machine and for a list of hosts, run by a real bash: an ssh that records its words and starts its
bash here, recorders in the place of the container and of the launcher.
"""

import json
import os
import re
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
from runner.model.site import NodeShape, Site
from runner.model.step import JobScript
from runner.planning.placement import parse_hosts, with_hosts
from runner.planning.plan import plan
from runner.sites.loader import read_site

RECIPE = Recipe(name="r", description="", image="i", program=("python3", "main.py"), options={"note": "x"})
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


def script(request: Request, via: str = "native", image: str = "/i.sqsh", site: Site = HERE) -> JobScript:
    planned = plan(RECIPE, site, request, PlannedImage("i", "sha256:ab", image))
    return render(planned, common.staged_step(planned, runtime(via)))


def executed(script: JobScript, by_ssh: bool = False, /, **extra: str) -> Ran:
    """Run a script in a run directory of its own, with an awkward name."""
    with tempfile.TemporaryDirectory() as name:
        top = Path(name)
        run = top / "a run's $dir"
        (run / "logs").mkdir(parents=True)
        (run / "recipe").mkdir()
        write_script(run, script)
        home = {"HOME": "/submitter", "RECORD": name} if by_ssh else {"HOME": name}
        env = {"PATH": f"{stubs()}:{os.environ['PATH']}", **home, **extra}
        done = subprocess.run(["/bin/bash", run / "job.sh"], env=env, capture_output=True, check=False, timeout=60)
        assert done.returncode == 0, done.stderr + b"".join(path.read_bytes() for path in (run / "logs").iterdir())
        marker = json.loads((run / "exit.json").read_text())
        assert (marker["exit"], marker["job"]) == (0, (run / "job.id").read_text().strip())
        kept = {path.name: path.read_bytes().split(b"\0")[:-1] for path in top.iterdir() if path.is_file()}
        ranks = [int(name.partition(".")[2]) for name in kept if re.fullmatch(r"words\.\d+", name)]
        pairs = {rank: [pair.partition(b"=") for pair in kept[f"environment.{rank}"]] for rank in ranks}
        environment = {rank: {key: value for key, _, value in each} for rank, each in pairs.items()}
        return Ran(kept.get("ssh", []), {rank: kept[f"words.{rank}"] for rank in ranks}, environment)


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
    request = Request(
        gpus=2 if here is None else 3,
        mounts=tuple(Mount(path, path) for path in mounts),
        env=tuple(env.items()),
        options=(("note", option),),
        arguments=tuple(arguments),
    )
    try:
        made = script(request, via, image, HERE if here is None else HOSTS)
    except UsageError as error:
        bad = "\n" if via == "native" else ":\n"
        assert any(c in path for path in mounts for c in bad) or "mount" in error.where, error
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
