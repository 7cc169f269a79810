"""The ways to carry a study out: each launch a job of its own, or other ways that share an allocation.

A way is a module here with the functions of ``Way``, and its name in ``_WAYS``.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, cast

from runner.jobs.watch import JobProgress
from runner.model import study as model
from runner.model.study import Launch
from runner.preparation.job import PreparedJob
from runner.study.campaign import Campaign
from runner.study.directory import StudyDirectory

_WAYS: dict[model.Way, str] = {"separate": "separate", "one-allocation": "one_allocation"}


@dataclass(frozen=True)
class Listener:
    """What is called on the way: with lines about launches, with the state of the job that is waited for (and the
    number of its ranks), and with warnings.
    """

    tell: Callable[[str], None]
    progress: Callable[[JobProgress, int], None]
    warn: Callable[[str], None]


@dataclass(frozen=True)
class Work:
    """What a way needs to start launches.

    Attributes:
        launches: all of the campaign, in their order.
        prepare: the launch as a job of its own, exactly as ``submit`` would prepare it; cached by point.
        waits: go on until every launch has ended.
        limit: how many runs a launch may have.
        one_at_a_time: also where the scheduler gives out nodes.
    """

    campaign: Campaign
    launches: Sequence[Launch]
    prepare: Callable[[Launch], PreparedJob]
    listener: Listener
    waits: bool = False
    limit: int = 3
    one_at_a_time: bool = False


class Way(Protocol):
    """How launches are started and looked after."""

    def carry_out(self, work: Work, wanted: Sequence[Launch]) -> None:
        """Start these launches in their order; where ``work.waits``, return when each has ended and was judged.

        The campaign is held meanwhile. Nothing more is started once ``work.campaign.is_stopped``.

        Raises:
            WaitInterrupted: Ctrl-C while it waits; jobs go on. Else as ``runner.preparation.job.start``.
        """

    def cancel(self, study: StudyDirectory) -> tuple[str, ...]:
        """Cancel all jobs of the study that have not ended; returns their ids."""


def names() -> tuple[model.Way, ...]:
    """The ways that there are, the plainest first."""
    return tuple(_WAYS)


def way(name: model.Way) -> Way:
    """The way of that name."""
    return cast(Way, importlib.import_module(f"{__name__}.{_WAYS[name]}"))
