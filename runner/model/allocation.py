"""An existing allocation, as its scheduler describes it; and what the script of a study's allocation runs."""

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


class ListedLaunch(msgspec.Struct, frozen=True):
    """A launch in the script of a study's allocation.

    Attributes:
        directory: of its run, absolute.
        needs_s: it is begun only where so many seconds are left.
        first_node, nodes: which of the allocation's nodes it has.
        with_next: the next one in the list, which is on other nodes, runs at the same time.
    """

    directory: str
    needs_s: int
    first_node: int = 0
    nodes: int = 1
    with_next: bool = False
