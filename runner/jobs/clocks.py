"""Which of several ends came first, by the clocks of several nodes.

Each rank has measured how far its node's clock is from rank 0's when it joined. Nothing else compares two nodes: the
times of files are stamped by servers or by clients, whichever the file system pleases.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from runner.model.records import ExitRecord, StartRecord

_DRIFT = 2e-5  # of clocks that nothing disciplines; quartz, seconds a second


@dataclass(frozen=True)
class EndTime:
    """When a rank ended.

    Attributes:
        node: on which.
        at_s: Unix time by rank 0's clock.
        error_s: of at_s against other nodes' times; infinite where their clocks were not compared.
    """

    node: str
    at_s: float
    error_s: float

    def gap_error_s(self, other: EndTime) -> float:
        """The error of the time between two ends, seconds; 0 on one node, which has one clock."""
        return 0.0 if self.node == other.node else self.error_s + other.error_s


def end_times(
    exits: Mapping[int, ExitRecord], starts: Mapping[int, StartRecord], nodes: Mapping[int, str]
) -> dict[int, EndTime]:
    """When each rank ended. Of each node the best of its ranks' comparisons counts.

    Args:
        nodes: rank -> node; where a rank is missing, its record's host counts.
    """
    offsets: dict[str, tuple[float, float]] = {}  # node -> error, offset
    for rank, start in starts.items():
        if start.clock_offset_s is not None and start.clock_error_s is not None:
            measured = (start.clock_error_s, start.clock_offset_s)
            offsets[nodes[rank]] = min(measured, offsets.get(nodes[rank], measured))
    times: dict[int, EndTime] = {}
    for rank, record in exits.items():
        node = nodes.get(rank, record.host)
        error_s, offset_s = offsets.get(node, (math.inf, 0.0))
        age_s = 0.0 if record.started_s is None else max(record.ended_s - record.started_s, 0.0)
        times[rank] = EndTime(node, record.ended_s + offset_s, error_s + _DRIFT * age_s)
    return times
