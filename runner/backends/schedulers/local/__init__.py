"""This machine, with no scheduler at all."""

from __future__ import annotations

from runner.core.registry import later
from runner.model.backends import SchedulerFacts

FACTS = SchedulerFacts(title="this machine", nodes="this-machine", beside=True, launches=True)

beside = later("runner.backends.schedulers.local.client", "beside")
connect = later("runner.backends.schedulers.local.client", "Local")
render = later("runner.backends.schedulers.local.script", "render")
render_launches = later("runner.backends.schedulers.script_parts", "render_launches")
