"""This machine, with no scheduler at all; processes and script are imported when they are called."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from runner.model.schedulers import SchedulerFacts

if TYPE_CHECKING:
    from runner.backends.schedulers.local.client import Local
    from runner.model.job import ListedLaunch
    from runner.model.plan import Plan
    from runner.model.script import JobScript
    from runner.model.step import StepSpec

FACTS = SchedulerFacts(title="this machine", nodes="this-machine", launches=True)


def connect(clients: Path | None) -> Local:
    """This machine; ``clients`` are programs that jobs find first."""
    from runner.backends.schedulers.local.client import Local

    return Local(clients)


def render(plan: Plan, step: StepSpec) -> JobScript:
    """The job's script; see ``script``."""
    from runner.backends.schedulers.local import script

    return script.render(plan, step)


def render_launches(plan: Plan, step: StepSpec, launches: Iterable[ListedLaunch]) -> JobScript:
    """The script of a study on this machine."""
    from runner.backends.schedulers.launches import on_this_machine

    return on_this_machine(plan, step, launches)
