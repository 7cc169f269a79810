"""Whole scripts with hostile strings in them, run by a real bash with recording parts: nothing may change on the way.

What a runtime cannot express is refused with the option and the text named; all else arrives byte for byte.
"""

from __future__ import annotations

import pytest
from hypothesis import given, settings

from runner.backends.runtimes import runtime
from runner.backends.schedulers import render
from runner.core.errors import UsageError
from runner.model.backends import RUNTIMES
from runner.model.plan import PlannedImage
from runner.model.request import Recipe, Request
from runner.model.site import NodeShape, Site
from runner.planning.plan import plan
from runner.render import sbatch_directive
from tests.support.hostile import HARD, HOSTILE
from tests.support.recording.slurm import arrives_or_is_refused

RECIPE = Recipe(name="r", description="", image="i", program=("python3", "main.py"), options={"note": "x"})

CONTAINERS = tuple(name for name, facts in RUNTIMES.items() if facts.is_container)  # that one: local/test_script.py


@pytest.mark.parametrize("via", CONTAINERS)
def test_hard_values_arrive(via: str) -> None:
    """One script for each runtime; tests/integration/test_hostile_scripts.py makes hundreds."""
    of_user = {"T_NOTE": HARD, "T_BLANKS": " two\t* "}
    envs = ({"T_SITE": HARD, "T_BOTH": "the site's"}, {"T_BOTH": HARD}, of_user)
    values = ([HARD, "", "-n", "*", "é\n漢"], [HARD], envs, HARD, [("/data/My.Sets", "/data")], "/m/i.img", HARD)
    assert arrives_or_is_refused(via, *values) > 0


@settings(max_examples=400, deadline=None)
@given(HOSTILE)
def test_a_directive_is_one_line_or_refused(value: str) -> None:
    try:
        line = sbatch_directive("comment", value)
    except UsageError as error:
        assert any(character in value for character in "\n\r\0")
        assert "--comment" in error.where
        return
    assert "\n" not in line
    assert line.startswith("#SBATCH --comment=")


def test_a_newline_in_a_sites_directive_is_refused_with_its_key() -> None:
    site = Site(
        name="s", description="", scheduler="slurm", runtimes=("pyxis",), node=NodeShape(cores=8, memory_mb=1, gpus=4),
        scheduler_settings={"directives": {"comment": "a\nb"}},
    )  # fmt: skip
    planned = plan(RECIPE, site, Request(gpus=1), PlannedImage("i", "", "/i"))
    with pytest.raises(UsageError) as caught:
        render(planned, runtime("pyxis").step(planned))
    assert "newline" in caught.value.what
    assert "--comment" in caught.value.where
