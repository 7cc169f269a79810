"""--meter reaches the program as variables, and a recipe that measures itself refuses it."""

from __future__ import annotations

import msgspec
import pytest

from runner.errors import UsageError
from runner.model.request import Request
from runner.planning.metering import variables
from tests.support.plans import RECIPE


def test_nothing_without_it() -> None:
    assert variables(RECIPE, Request(gpus=2)) == {}


def test_the_batch_says_as_much_as_the_flag() -> None:
    assert variables(RECIPE, Request(gpus=2, meter=True)) == {"RUNNER_METER": "1"}
    both = {"RUNNER_METER": "1", "RUNNER_METER_BATCH": "32"}
    assert variables(RECIPE, Request(gpus=2, meter_batch=32)) == both


def test_a_recipe_that_measures_itself_refuses_it() -> None:
    measures = msgspec.structs.replace(RECIPE, result="throughput")
    with pytest.raises(UsageError, match="the recipe r measures itself"):
        variables(measures, Request(gpus=2, meter=True))


@pytest.mark.parametrize("batch", [0, -1])
def test_an_impossible_batch_is_refused(batch: int) -> None:
    with pytest.raises(UsageError, match="samples a step are not possible"):
        variables(RECIPE, Request(gpus=2, meter_batch=batch))
