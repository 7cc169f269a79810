"""Container runtimes: each one file, from a plan to a StepSpec, pure.

A new runtime is one module with ``IMAGE``, ``step`` and ``mount_problem``, and its name here; if it serves on a
machine with no scheduler, a line in ``alone``.
"""

from __future__ import annotations

import importlib
from typing import Protocol, cast

from runner.errors import UsageError
from runner.model.names import ImageForm
from runner.model.plan import Plan
from runner.model.step import StepSpec
from runner.suggest import instead

# Name -> module; Singularity is Apptainer by its older name.
_MODULES = {
    "pyxis": "pyxis",
    "enroot": "enroot",
    "apptainer": "apptainer",
    "singularity": "apptainer",
    "shifter": "shifter",
    "podman-hpc": "podman_hpc",
    "charliecloud": "charliecloud",
    "native": "native",
}
NAMES = tuple(_MODULES)


class Runtime(Protocol):
    """What every runtime's module offers."""

    @property
    def IMAGE(self) -> ImageForm:
        """The form in which it takes an image."""

    def step(self, plan: Plan) -> StepSpec:
        """How this runtime runs the plan's step. Raises UsageError for what it cannot express."""

    def mount_problem(self, path: str) -> str | None:
        """Why a host path cannot be mounted by this runtime; None if it can."""


def runtime(name: str) -> Runtime:
    """The runtime of that name.

    Raises:
        UsageError: there is none; names the nearest.
    """
    if name not in _MODULES:
        raise UsageError(
            f"no runtime named {name!r}",
            where="--runtime",
            fix=instead(name, NAMES, f"runtimes: {', '.join(NAMES)}"),
        )
    return cast(Runtime, importlib.import_module(f"runner.runtimes.{_MODULES[name]}"))
