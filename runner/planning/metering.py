"""The variables by which a job's program measures itself. Pure."""

from __future__ import annotations

from runner.errors import UsageError
from runner.model.recipe import Recipe
from runner.model.request import Request


def variables(recipe: Recipe, request: Request) -> dict[str, str]:
    """Variables of every rank, which the launcher and ``gpu_runner_inside.meter`` read; none without ``--meter``.

    Raises:
        UsageError: the recipe's program leaves its own records, or the batch size is impossible.
    """
    if not request.meter and request.meter_batch is None:
        return {}
    if recipe.result != "if-left":
        raise UsageError(
            f"the program of the recipe {recipe.name} leaves records of its own",
            where="--meter",
            fix="leave it out, or give a program after --",
        )
    if request.meter_batch is None:
        return {"RUNNER_METER": "1"}
    if request.meter_batch < 1:
        raise UsageError(
            f"{request.meter_batch} samples a step are not possible", where="--meter-batch", fix="give one or more"
        )
    return {"RUNNER_METER": "1", "RUNNER_METER_BATCH": str(request.meter_batch)}
