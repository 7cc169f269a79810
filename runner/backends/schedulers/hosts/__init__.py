"""Nodes that the user lists and ssh reaches, with no scheduler."""

from __future__ import annotations

from runner.backends.schedulers import beside_by_ssh
from runner.core.registry import later
from runner.model.backends import SchedulerFacts

FACTS = SchedulerFacts(
    title="listed hosts",
    nodes="listed",
    exclusive_nodes=False,  # nothing keeps other users' programs away
    beside=True,
    launches=True,
)

beside = beside_by_ssh
connect = later("runner.backends.schedulers.hosts.client", "SshHosts")
render = later("runner.backends.schedulers.hosts.script", "render")
render_launches = later("runner.backends.schedulers.script_parts", "render_launches")
