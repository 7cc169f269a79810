"""--meter reaches the program as variables, and a program with records of its own refuses it."""

from __future__ import annotations

from typing import Literal

import msgspec
import pytest

from runner.core.errors import UsageError
from runner.model.request import Request
from runner.planning.environment import meter_variables
from tests.support.plans import RECIPE

OWN = msgspec.structs.replace(RECIPE, result="if-left")


def test_nothing_without_it() -> None:
    assert meter_variables(RECIPE, Request(gpus=2)) == meter_variables(OWN, Request(gpus=2)) == {}


def test_the_batch_says_as_much_as_the_flag() -> None:
    assert meter_variables(OWN, Request(gpus=2, meter=True)) == {"RUNNER_METER": "1"}
    both = {"RUNNER_METER": "1", "RUNNER_METER_BATCH": "32"}
    assert meter_variables(OWN, Request(gpus=2, meter_batch=32)) == both


@pytest.mark.parametrize("result", ["throughput", "none"])
def test_a_program_that_leaves_its_own_records_refuses_it(result: Literal["throughput", "none"]) -> None:
    """The meter's would take their place."""
    own = msgspec.structs.replace(RECIPE, result=result)
    with pytest.raises(UsageError, match="the program of the recipe r leaves records of its own"):
        meter_variables(own, Request(gpus=2, meter=True))


@pytest.mark.parametrize("batch", [0, -1])
def test_an_impossible_batch_is_refused(batch: int) -> None:
    with pytest.raises(UsageError, match="samples a step are not possible"):
        meter_variables(OWN, Request(gpus=2, meter_batch=batch))
