"""A run as a list shows it."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

import msgspec

from runner.model.figure import FigureKeys
from runner.model.study import ListedStudy
from runner.model.verdict import Outcome

State = Literal["pending", "running", "ended", "unknown", "not-submitted"]


class ListedRun(FigureKeys, frozen=True):
    """One run of a list. Keys that ``status RUN`` has, too, mean the same there. Times are UTC, whole seconds.

    Attributes:
        state: ``unknown`` where the scheduler does not answer, or knows nothing of the job; ``not-submitted`` where it
            refused it.
        reason: why a pending job waits, in the scheduler's words; empty where it does not wait, or says nothing.
        gpus: as requested; on a site without GPUs, one rank stands for a GPU.
        submitted: null where that cannot be read.
        outcome: of the verdict; null until the run was judged.
    """

    run: str
    directory: str
    name: str
    job: str
    state: State
    reason: str
    gpus: int
    site: str
    submitted: datetime | None
    outcome: Outcome | None


class RunList(msgspec.Struct, frozen=True):
    """The result of ``status`` without RUN.

    Attributes:
        runs: the newest first. more: whether there are older ones that were left out.
        refused: how many submissions were left out because the scheduler refused them.
        studies: the newest first; their runs are not among ``runs`` unless those were requested by name, or all.
    """

    runs: tuple[ListedRun, ...]
    more: bool
    refused: int
    studies: tuple[ListedStudy, ...] = ()
