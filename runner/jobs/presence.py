"""Which records of a run are there, and whether one that is missing could still change the verdict.

A network file system shows a new file late (NFS: up to ``acdirmax``, 60 s), so its absence is believed only after a
while. What a directory's listing shows proves that what was written into it before is there, too.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from runner.diagnosis.catalogue import find
from runner.files import file_system
from runner.jobs.directory import RunDirectory
from runner.model.job import JobState

_RECORD = re.compile(r"(0|[1-9]\d*)\.(start|exit|report)\.json\Z")


@dataclass(frozen=True)
class Presence:
    """What is there, by one listing of each directory.

    Attributes:
        marker: the batch script's exit marker.
        result: the program's result.
        starts, exits, reports: ranks with that record.
    """

    marker: bool
    result: bool
    starts: frozenset[int]
    exits: frozenset[int]
    reports: frozenset[int]


def presence(run: RunDirectory) -> Presence:
    """What is there now: two listings, whatever the number of ranks.

    Raises:
        OSError: the run directory cannot be listed.
    """
    ranks: dict[str, set[int]] = {"start": set(), "exit": set(), "report": set()}
    # The records come before the marker: once that is seen, they are.
    above = file_system.names_in(run.path)
    for name in file_system.names_in(run.ranks):
        match = _RECORD.match(name)
        if match is not None:
            ranks[match[2]].add(int(match[1]))
    return Presence(
        marker="exit.json" in above,
        result="result.json" in above,
        starts=frozenset(ranks["start"]),
        exits=frozenset(ranks["exit"]),
        reports=frozenset(ranks["report"]),
    )


def is_awaited(there: Presence, state: JobState, tasks: int) -> bool:
    """Whether a record that is not there could change the verdict on a job that has ended so.

    A report and a node's record are written before their rank's exit record, into the same directory, and the result
    before the marker: where the later one is listed, the absence of the earlier one is no delay.
    """
    explained = find("scheduler state", state.name, state.reason)
    if explained is not None and explained.outcome != "failed":
        return False  # whatever the ranks left
    if explained is None and not there.marker:
        return True
    return len(there.exits) < tasks or len(there.starts) < tasks
