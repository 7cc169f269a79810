"""Nodes that the user lists and ssh reaches, with no scheduler; ``ssh`` beside this is imported when it is called."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from runner.backends.schedulers.local import render_launches
from runner.model.schedulers import SchedulerFacts

if TYPE_CHECKING:
    from runner.backends.schedulers.ssh.client import SshHosts
    from runner.model.plan import Plan
    from runner.model.script import JobScript
    from runner.model.step import StepSpec

__all__ = ["FACTS", "connect", "render", "render_launches"]

FACTS = SchedulerFacts(
    title="listed hosts",
    nodes="listed",
    exclusive_nodes=False,  # nothing keeps other users' programs away
    launches=True,
)


def connect(clients: Path | None) -> SshHosts:
    """The hosts of each job's plan; ``clients`` are programs that the controller finds first."""
    from runner.backends.schedulers.ssh.client import SshHosts

    return SshHosts(clients)


def render(plan: Plan, step: StepSpec) -> JobScript:
    """The controller's script; see ``ssh.script``."""
    from runner.backends.schedulers.ssh import script

    return script.render(plan, step)
