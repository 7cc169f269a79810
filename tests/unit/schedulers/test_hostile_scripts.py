"""Whole scripts with hostile strings in them, run by a real bash with recording parts: nothing may change on the way.

What a runtime cannot express is refused with the option and the text named; all else arrives byte for byte.
"""

from __future__ import annotations

import os
from collections import Counter

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
from runner.schedulers import render
from tests.support.hostile import HOSTILE, NAME, PATH
from tests.support.recording import executed

RECIPE = Recipe(name="r", description="", image="i", program=("python3", "main.py"), options={"note": "x"})
ENV = st.dictionaries(NAME, HOSTILE, max_size=3)

CONTAINERS = tuple(name for name in NAMES if name != "native")  # that one: test_local_script.py
ALL_SCRIPTS = 600  # in a run of all runtimes: about 35 ms each
ALL_VALUES = 1000  # compared at least
_tried: Counter[str] = Counter()


@pytest.mark.parametrize("via", CONTAINERS)
@settings(max_examples=max(100, ALL_SCRIPTS // len(CONTAINERS)), deadline=None, suppress_health_check=list(HealthCheck))
@given(
    arguments=st.lists(HOSTILE, max_size=4),
    of_recipe=st.lists(HOSTILE, max_size=2),
    envs=st.tuples(ENV, ENV, ENV),
    option=HOSTILE,
    mounts=st.lists(st.tuples(PATH, PATH), max_size=2, unique_by=lambda pair: os.path.normpath(pair[1])),
    image=PATH,
    mpi=HOSTILE,
)
def test_what_was_given_arrives_or_is_refused(
    via: str,
    arguments: list[str],
    of_recipe: list[str],
    envs: tuple[dict[str, str], dict[str, str], dict[str, str]],
    option: str,
    mounts: list[tuple[str, str]],
    image: str,
    mpi: str,
) -> None:
    """Of site, recipe and user; a rank sees the value of whoever comes last, over the image's."""
    site = Site(
        name="s", description="", scheduler="slurm", runtimes=(via,), node=NodeShape(cores=8, memory_mb=1, gpus=4),
        slurm=SlurmFacts(mpi=mpi), env=envs[0],
    )  # fmt: skip
    recipe = Recipe(
        name="r", description="", image="i", program=("python3", *of_recipe), options={"note": "x"}, env=envs[1]
    )
    request = Request(
        gpus=8,
        mounts=tuple(Mount(source, target) for source, target in mounts),
        env=tuple(envs[2].items()),
        options=(("note", option),),
        arguments=tuple(arguments),
    )
    env = {**envs[0], **envs[1], **envs[2]}
    try:
        planned = plan(recipe, site, request, PlannedImage("registry.example/i:1", "sha256:ab", image))
        step = runtime(via).step(planned)
    except UsageError as error:
        given = [*(f"{source}\0{target}" for source, target in mounts), *env.values(), *of_recipe, option, *arguments]
        assert error.where.startswith(("--mount", "--env", "-- "))
        assert any(repr(c)[1:-1] in error.what or c == "\n" for text in given for c in text), error
        _tried["refused"] += 1
        return
    arrived = executed(render(planned, step), step)
    shown = os.fsencode(option)
    options = [b"--note=" + shown] if shown.startswith(b"-") else [b"--note", shown]
    assert arrived.program == [b"python3", *map(os.fsencode, of_recipe), *options, *map(os.fsencode, arguments)]
    seen = {name: arrived.environment.get(os.fsencode(name)) for name in env}
    assert seen == {name: os.fsencode(value) for name, value in env.items()}
    joined = b"\n".join(arrived.words)
    assert os.fsencode(image) in joined or b"registry.example/i:1" in joined
    assert os.fsencode(f"--mpi={mpi}") in arrived.words
    for source, target in mounts:
        assert os.fsencode(f"{source}:{target}") in joined
    _tried[via] += 1
    _tried["values"] += len(arguments) + len(of_recipe) + len(env) + 2 * len(mounts) + 3


def test_enough_was_tried() -> None:
    """Every runtime has run scripts, and not nearly all was refused. Says nothing where the test above was left out."""
    if not _tried:
        return
    print(dict(_tried))
    assert all(_tried[via] > 30 for via in CONTAINERS), _tried
    assert _tried["values"] >= ALL_VALUES, _tried


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
