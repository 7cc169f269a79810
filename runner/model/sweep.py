"""A sweep: runs of one program with other values, submitted together (``sweep.json``)."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

import msgspec

from runner.model.job import CommandLine

Time = Annotated[datetime, msgspec.Meta(tz=True)]


class SweptRun(msgspec.Struct, frozen=True):
    """A run that a sweep wants. ``key``: its number, from 1; ``values``: name and value of each of the sweep's."""

    key: str
    values: tuple[tuple[str, str], ...]


class Sweep(msgspec.Struct, frozen=True):
    """``sweep.json``. Never changed after it was written.

    Attributes:
        sweep: its id. created: UTC, whole seconds. command: for a reader; empty from Python.
        at_once: how many of its runs may run at one time; None for any number.
    """

    schema: Literal["1"]
    sweep: str
    created: Time
    command: CommandLine
    runs: tuple[SweptRun, ...]
    at_once: int | None = None
