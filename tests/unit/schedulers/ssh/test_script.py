"""Scripts for a list of hosts, run by a real bash: an ssh that records its words and starts its bash here, recorders in
the place of the container and of the launcher.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from runner.errors import UsageError
from runner.model.plan import PlannedImage
from runner.model.recipe import Recipe
from runner.model.request import Mount, Request
from runner.planning.hosts import listed, shaped
from runner.planning.plan import plan
from runner.runtimes import runtime, staging
from runner.schedulers import render
from runner.sites.loader import read_site
from tests.support.hostile import HOSTILE, NAME, PATH

RECIPE = Recipe(name="r", description="", image="i", program=("python3", "main.py"), options={"note": "x"})
SITE = shaped(read_site("hosts"), listed("me@nodea:2,nodeb:1"))

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


def script(request: Request, via: str = "native", image: str = "/i.sqsh") -> str:
    planned = plan(RECIPE, SITE, request, PlannedImage("i", "sha256:ab", image))
    return render(planned, staging.step(planned, runtime(via)))


def executed(text: str, **extra: str) -> Ran:
    """Run a script in a run directory of its own, with an awkward name."""
    with tempfile.TemporaryDirectory() as name:
        run = Path(name) / "a run's $dir"
        (run / "logs").mkdir(parents=True)
        (run / "recipe").mkdir()
        (run / "job.sh").write_bytes(text.encode("utf-8", "surrogateescape"))
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


@pytest.mark.parametrize("via", ["native", "charliecloud"])
@settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    arguments=st.lists(HOSTILE, max_size=4),
    env=st.dictionaries(NAME, HOSTILE, max_size=3),
    here=HOSTILE.filter(lambda text: "\0" not in text),
    option=HOSTILE,
    mounts=st.lists(PATH.filter(lambda path: path.strip("/.") != ""), max_size=2, unique=True),
    image=PATH,
)
def test_what_the_user_gave_arrives_and_nothing_of_it_on_sshs_command_line(
    via: str, arguments: list[str], env: dict[str, str], here: str, option: str, mounts: list[str], image: str
) -> None:
    request = Request(
        gpus=3,
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
    ran = executed(text, HERE=here)
    ours = (b"exec bash -s", b"me@nodea", b"nodeb", b"--", b"-G", b"-T", b"-x", b"-o")
    assert all(word in ours or word.count(b"=") == 1 for word in ran.ssh)
    expected = [os.fsencode(argument) for argument in arguments]
    for rank in range(3):
        assert ran.words[rank][len(ran.words[rank]) - len(expected) :] == expected
        for name, value in env.items():
            carried = (b"" if via == "native" else b"RUNNER_ENV_") + name.encode()
            assert ran.environment[rank][carried] == os.fsencode(value)
        assert ran.environment[rank].get(b"HERE") == (os.fsencode(here) if via == "native" else None)


def test_every_rank_has_its_place_and_its_nodes_own_user() -> None:
    ran = executed(script(Request(gpus=3)), SLURM_PROCID="5", RUNNER_JOB_ID="x", SSH_AUTH_SOCK="/x", TMPDIR="/tmp")
    names = (b"RANK", b"LOCAL_RANK", b"WORLD_SIZE", b"LOCAL_WORLD_SIZE", b"RUNNER_RDV_HOST", b"USER")
    assert [[ran.environment[rank][name] for name in names] for rank in range(3)] == [
        [b"0", b"0", b"3", b"2", b"10.0.0.1", b"me"],
        [b"1", b"1", b"3", b"2", b"10.0.0.1", b"me"],
        [b"2", b"0", b"3", b"1", b"10.0.0.1", b"me"],
    ]
    assert len({ran.environment[rank][b"RUNNER_RDV_PORT"] for rank in range(3)}) == 1
    assert len({ran.environment[rank][b"RUNNER_JOB_ID"] for rank in range(3)} - {b"x"}) == 1
    assert not {b"SLURM_PROCID", b"SSH_AUTH_SOCK", b"TMPDIR"} & set(ran.environment[0])
    assert ran.environment[2][b"ON_NODE"] == b"nodeb"
    assert ran.environment[0][b"HOME"] != b"/submitter"


def test_a_container_gets_nothing_of_either_shell() -> None:
    clean = executed(script(Request(gpus=3), "charliecloud")).environment[2]
    dirty = {"PYTHONPATH": "/x", "OMPI_MCA_btl": "tcp", "BASH_FUNC_f%%": "() { true; }"}
    assert set(executed(script(Request(gpus=3), "charliecloud"), **dirty).environment[2]) == set(clean)
    assert b"ON_NODE" not in clean


@pytest.mark.parametrize(
    ("request_", "says"),
    [
        (Request(gpus=1, queue="q"), "--queue"),
        (Request(gpus=1, scheduler_options=(("reservation", "r"),)), "--scheduler-option"),
        (Request(gpus=1, mounts=(Mount("/a", "/b"),)), "--mount"),
    ],
)
def test_what_a_list_of_hosts_cannot_do_is_refused(request_: Request, says: str) -> None:
    with pytest.raises(UsageError) as caught:
        script(request_)
    assert says in caught.value.where
