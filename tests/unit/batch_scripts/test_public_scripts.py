"""`submit JOB.sbatch --check`: scripts with the facts of 60 public ones, and 60 faults planted into them."""

from __future__ import annotations

import msgspec
import pytest

from runner.batch_scripts.faults import faults
from runner.batch_scripts.reading import read
from runner.batch_scripts.translation import translation
from runner.model.plan import PlannedImage
from runner.planning.launchers import starters
from runner.planning.plan import plan
from runner.preparation.request import make_request
from runner.recipes.loader import recipe_or_program
from tests.support.batch_scripts import Planted, planted, rows, script_of
from tests.support.plans import SITE

ROWS, PLANTED = rows(), planted()
assert len(ROWS) == len(PLANTED) == 60
OF_A_SITE = ("queue", "account", "gpu_type", "scheduler_options", "image", "runtime", "modules", "mounts")


def by_us(values: dict[str, object]) -> list[int]:
    """Nodes, processes and GPUs of each node in the plan of our command."""
    site = msgspec.structs.replace(SITE, node=msgspec.structs.replace(SITE.node, count=64))
    request = make_request({name: value for name, value in values.items() if name not in OF_A_SITE})
    recipe = recipe_or_program(None, request.program).recipe
    planned = plan(recipe, site, request, PlannedImage("i", "", "/i.sqsh"), None)
    by_starter = bool(starters(request.program))  # it starts a process for each GPU of its node
    each = planned.gpus_by_node[0] if by_starter else planned.tasks_per_node[0]
    return [planned.nodes, each, planned.gpus_per_node]


def codes_of(text: str) -> set[str]:
    return {fault.code for fault in faults(read(text, {}))}


@pytest.mark.parametrize("name", ROWS)
def test_our_command_places_as_the_script_does_or_says_why_there_is_none(name: str) -> None:
    row = ROWS[name]
    assert codes_of(script_of(row)) == set(row.get("faults", ())), "no false alarm, and no wrong placement unnamed"
    ours = translation(read(script_of(row), {}))
    if isinstance(row["placed"], str):
        assert row["placed"] in ours.refused
        assert not ours.values
    else:
        assert not ours.refused
        assert by_us(ours.values) == row["placed"]


@pytest.mark.parametrize("each", PLANTED, ids=[each.name for each in PLANTED])
def test_a_planted_fault_is_named(each: Planted) -> None:
    assert each.code in codes_of(each.text)
