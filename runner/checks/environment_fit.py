"""Does an environment that was made have what a recipe imports? Compares what both declare."""

from __future__ import annotations

from runner.invocation import PROGRAM
from runner.model.environment import Environment
from runner.model.recipe import Recipe

_FRAMEWORKS = {"torch": "pytorch", "tensorflow": "tensorflow"}


def lacking(recipe: Recipe, environment: Environment) -> tuple[str, str]:
    """What it lacks, and what to do; empty if nothing is known to be lacking."""
    for need in recipe.needs:
        wanted = _FRAMEWORKS.get(need, environment.framework)
        if wanted != environment.framework:
            return (
                f"the environment {environment.name} has {environment.framework}, and the recipe wants {need}",
                f"{PROGRAM} env create NAME --framework {wanted}, and --env-name NAME",
            )
    return "", ""
