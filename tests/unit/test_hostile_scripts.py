"""Whole scripts with hostile strings in them, run by a real bash with a recording srun: nothing may change on the way.

What a runtime cannot express is refused with the character named; all else arrives byte for byte.
"""

from __future__ import annotations

import os
import posixpath
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
from runner.model.site import NodeShape, Site, SlurmFacts
from runner.planning.plan import plan
from runner.render.sbatch import directive
from runner.runtimes import NAMES, runtime
from runner.schedulers.slurm_script import render
from tests.unit.test_shell_words import HOSTILE

RECIPE = Recipe(name="r", description="", image="i", program=("python3", "main.py"), options={"note": "x"})
NAME = st.from_regex(r"[A-Z][A-Za-z0-9_]{0,8}", fullmatch=True).map(lambda name: f"T_{name}")
PATH = HOSTILE.map(lambda text: "/" + text)

_RECORD = """#!/bin/bash
# Keeps the words of every call and the environment of the last one, NUL-separated.
printf '%s\\0' "$@" "--end-of-call--" >>"$RECORD/words"
env -0 >"$RECORD/environment"
"""


@cache
def stubs() -> Path:
    """A directory with a recording srun and a scontrol that names two nodes."""
    directory = Path(tempfile.mkdtemp(prefix="runner-stubs-"))
    for name, content in (("srun", _RECORD), ("scontrol", "#!/bin/sh\necho n1\necho n2\n")):
        (directory / name).write_text(content)
        (directory / name).chmod(0o755)
    return directory


def executed(script: str) -> tuple[list[list[bytes]], dict[bytes, bytes]]:
    """Run a batch script as Slurm would; returns the words of each srun call, and the environment of the last."""
    with tempfile.TemporaryDirectory() as name:
        run = Path(name) / "a run's $dir"
        run.mkdir()
        (run / "job.sh").write_bytes(script.encode("utf-8", "surrogateescape"))
        env = {
            "PATH": f"{stubs()}:{os.environ['PATH']}",
            "RECORD": name,
            "SLURM_SUBMIT_DIR": str(run),
            "SLURM_JOB_ID": "42",
            "SLURM_JOB_NODELIST": "n[1-2]",
        }
        done = subprocess.run(["/bin/bash", run / "job.sh"], env=env, capture_output=True, check=False, timeout=60)
        assert done.returncode == 0, done.stderr
        assert (run / "exit.json").is_file()
        words = (Path(name) / "words").read_bytes().split(b"\0")[:-1]
        calls: list[list[bytes]] = [[]]
        for word in words:
            if word == b"--end-of-call--":
                calls.append([])
            else:
                calls[-1].append(word)
        pairs = (Path(name) / "environment").read_bytes().split(b"\0")[:-1]
        return calls[:-1], dict((key, value) for key, _, value in (pair.partition(b"=") for pair in pairs))


@pytest.mark.parametrize("via", NAMES)
@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    arguments=st.lists(HOSTILE, max_size=4),
    env=st.dictionaries(NAME, HOSTILE, max_size=3),
    option=HOSTILE,
    mounts=st.lists(st.tuples(PATH, PATH), max_size=2, unique_by=lambda pair: pair[1].rstrip("/") or "/"),
    image=PATH,
)
def test_what_the_user_gave_arrives_or_is_refused(
    via: str, arguments: list[str], env: dict[str, str], option: str, mounts: list[tuple[str, str]], image: str
) -> None:
    site = Site(
        name="s", description="", scheduler="slurm", runtimes=(via,), node=NodeShape(cores=8, memory_mb=1, gpus=4)
    )
    request = Request(
        gpus=8,
        mounts=tuple(Mount(source, target) for source, target in mounts),
        env=tuple(env.items()),
        options=(("note", option),),
        arguments=tuple(arguments),
    )
    try:
        planned = plan(RECIPE, site, request, PlannedImage("i", "sha256:ab", image))
        script = render(planned, runtime(via).step(planned))
    except UsageError as error:
        cannot = ":\n" if via == "charliecloud" else ',:"$`\\\n'
        inexpressible = [c for c in cannot if any(c in part for pair in mounts for part in pair)]
        reserved = [target for _, target in mounts if posixpath.normpath(target).strip("/") == ""]
        assert inexpressible or reserved, error
        return
    calls, environment = executed(script)
    step = calls[-1]
    expected = [os.fsencode(argument) for argument in arguments]
    assert step[len(step) - len(expected) :] == expected
    shown = os.fsencode(option)
    assert (b"--note=" + shown if shown.startswith(b"-") else shown) in step
    for name, value in env.items():
        prefix = b"RUNNER_ENV_" if via == "charliecloud" or "\n" in value else b""
        assert environment[prefix + name.encode()] == os.fsencode(value)
    joined = b"\n".join(word for call in calls for word in call)
    assert os.fsencode(image) in joined
    for source, target in mounts:
        assert os.fsencode(f"{source}:{target}") in joined


@settings(max_examples=400, deadline=None)
@given(HOSTILE)
def test_a_directive_is_one_line_or_refused(value: str) -> None:
    try:
        line = directive("comment", value)
    except UsageError as error:
        assert any(character in value for character in "\n\r\0")
        assert "--comment" in error.where
        return
    assert "\n" not in line
    assert line.startswith("#SBATCH --comment=")


def test_a_newline_in_a_sites_directive_is_refused_with_its_key() -> None:
    site = Site(
        name="s", description="", scheduler="slurm", runtimes=("pyxis",), node=NodeShape(cores=8, memory_mb=1, gpus=4),
        slurm=SlurmFacts(directives={"comment": "a\nb"}),
    )  # fmt: skip
    planned = plan(RECIPE, site, Request(gpus=1), PlannedImage("i", "", "/i"))
    with pytest.raises(UsageError) as caught:
        render(planned, runtime("pyxis").step(planned))
    assert "newline" in caught.value.what
    assert "--comment" in caught.value.where
