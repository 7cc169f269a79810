"""Container runtimes: each one module, from a plan to a StepSpec, pure.

A runtime is a module with FACTS, what is known of it, and ``step``. It is here, or in another distribution that offers
it by an entry point of the group ``gpu_runner.runtimes``; no other file names it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol, cast

from runner.core import process
from runner.core.errors import RunnerError
from runner.model.backends import RUNTIMES
from runner.model.plan import Plan
from runner.model.step import StepSpec


class Runtime(Protocol):
    """What every runtime's module offers; ``image_problem`` only where it keeps images of its own."""

    def step(self, plan: Plan) -> StepSpec:
        """How this runtime runs the plan's step. Raises UsageError for what it cannot express."""

    def image_problem(self, reference: str, mount_points: Sequence[str], *, local: bool) -> tuple[str, str]:
        """See the function of this name."""


def runtime(name: str) -> Runtime:
    """The runtime of that name. Raises UsageError: there is none, and names the nearest; or another distribution's
    cannot be used.
    """
    return cast(Runtime, RUNTIMES.module(name))


def image_problem(name: str, reference: str, mount_points: Sequence[str], *, local: bool) -> tuple[str, str]:
    """Why a job could not start in an image that the runtime itself keeps, and the fix; empty if nothing is known
    against it, as where the runtime's own commands are not on this machine.

    Args:
        mount_points: directories that must be in the image, where the runtime makes none.
        local: the image was built there, and comes from no registry.
    """
    module = runtime(name)
    if not hasattr(module, "image_problem"):
        return "", ""
    return module.image_problem(reference, mount_points, local=local)


def answer_of(program: str, *words: str, cwd: Path | None = None) -> process.Completed | None:
    """What a command of a runtime says on this machine; None where it is not here, or does not answer in time."""
    if process.find(program) is None:
        return None
    try:
        return process.run((program, *words), timeout_s=60.0, check=False, cwd=cwd)
    except RunnerError:
        return None
