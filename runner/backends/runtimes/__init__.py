"""Container runtimes: each one file, from a plan to a StepSpec, pure.

A new runtime is one module here with ``step``, and its row in ``runner.model.runtimes``.
"""

from __future__ import annotations

import importlib
from typing import Protocol, cast

from runner.core.errors import UsageError
from runner.core.text import instead
from runner.model.plan import Plan
from runner.model.runtimes import GONE, RUNTIMES, RuntimeFacts
from runner.model.step import StepSpec


class Runtime(Protocol):
    """What every runtime's module offers."""

    def step(self, plan: Plan) -> StepSpec:
        """How this runtime runs the plan's step. Raises UsageError for what it cannot express."""


def facts(name: str) -> RuntimeFacts:
    """What is known of the runtime of that name.

    Raises:
        UsageError: there is none; names the nearest.
    """
    if name not in RUNTIMES:
        raise UsageError(
            f"no runtime named {name!r}",
            where="--runtime",
            fix=GONE.get(name) or instead(name, RUNTIMES, f"runtimes: {', '.join(RUNTIMES)}"),
        )
    return RUNTIMES[name]


def runtime(name: str) -> Runtime:
    """The runtime of that name. Raises UsageError as ``facts``."""
    return cast(Runtime, importlib.import_module(f"runner.backends.runtimes.{facts(name).module}"))
