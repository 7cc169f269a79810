"""Singularity: Apptainer by its older name."""

from __future__ import annotations

import msgspec

from runner.backends.runtimes import apptainer

FACTS = msgspec.structs.replace(
    apptainer.FACTS, program="singularity", versions={"singularity": ("singularity", "--version")}, preference=31
)
step = apptainer.step
