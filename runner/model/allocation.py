"""An allocation that is held already, as its scheduler tells of it."""

from __future__ import annotations

import msgspec


class AllocatedNode(msgspec.Struct, frozen=True):
    """What the allocation has of one node: schedulable CPUs, and GPUs."""

    name: str
    cpus: int
    gpus: int


class Allocation(msgspec.Struct, frozen=True):
    """One held allocation.

    Attributes:
        nodes: in the scheduler's order.
        in_step: it was asked from within a step, which holds the resources that a further one would get.
    """

    job_id: str
    nodes: tuple[AllocatedNode, ...]
    in_step: bool = False
