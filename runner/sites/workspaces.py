"""The user's workspaces, from ``ws_list`` (hpc-workspace; ZIH and other German sites)."""

from __future__ import annotations

import re
from collections.abc import Iterator

from runner import process
from runner.checks.storage import Workspace
from runner.errors import RunnerError

_TIMEOUT_S = 10.0
_UNITS_S = {"day": 86400, "hour": 3600, "minute": 60}


def workspaces() -> tuple[Workspace, ...]:
    """The user's workspaces; none where the tool is missing or does not answer in time, as a check must not hang."""
    try:
        return tuple(read(process.run(("ws_list",), timeout_s=_TIMEOUT_S).out))
    except RunnerError:
        return ()


def read(text: str) -> Iterator[Workspace]:
    """Workspaces from the output of ``ws_list``: an ``id:`` line for each, then indented ``name : value`` lines."""
    for part in re.split(r"^id:", text, flags=re.MULTILINE)[1:]:
        name, *lines = part.splitlines()
        fields = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
        directory = fields.get("workspace directory", "")
        left = re.findall(r"(\d+)\s*(day|hour|minute)s?", fields.get("remaining time", ""))
        if directory and left:
            yield Workspace(name.strip(), directory, float(sum(int(count) * _UNITS_S[unit] for count, unit in left)))
