"""An existing allocation, as its scheduler describes it."""

from __future__ import annotations

import msgspec


class AllocatedNode(msgspec.Struct, frozen=True):
    """What the allocation has of one node: schedulable CPUs, and GPUs."""

    name: str
    cpus: int
    gpus: int


class Allocation(msgspec.Struct, frozen=True):
    """One existing allocation.

    Attributes:
        nodes: in the scheduler's order.
        in_step: this process runs in one of its steps, which already uses the resources.
    """

    job_id: str
    nodes: tuple[AllocatedNode, ...]
    in_step: bool = False
