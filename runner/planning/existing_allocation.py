"""Which nodes of an existing allocation a job gets. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from runner.errors import RefusedError
from runner.model.allocation import AllocatedNode, Allocation
from runner.model.plan import StepNodes
from runner.text import counted, gpus_text


def choose_nodes(allocation: Allocation, tasks_per_node: Sequence[int], gpus: int, cpus_per_task: int) -> StepNodes:
    """For each node of the job the first free node of the allocation that has what it needs.

    Args:
        gpus: of every node.

    Raises:
        RefusedError: the job does not fit; says what it needs and what the allocation has.
    """
    free = list(allocation.nodes)
    chosen: list[str] = []
    for tasks in tasks_per_node:
        node = next((node for node in free if node.gpus >= gpus and node.cpus >= tasks * cpus_per_task), None)
        if node is None:
            cpus = max(tasks_per_node) * cpus_per_task
            raise RefusedError(
                f"{_needed(len(tasks_per_node), gpus, cpus)} does not fit the existing allocation: "
                f"{_available(allocation.nodes)}",
                where=f"job {allocation.job_id}",
                fix="request less (--gpus, --nodes), or get a larger allocation",
            )
        free.remove(node)
        chosen.append(node.name)
    return StepNodes(tuple(chosen), overlap=allocation.in_step, job_id=allocation.job_id)


def _needed(nodes: int, gpus: int, cpus: int) -> str:
    return f"a step of {counted(nodes, 'node')} with {gpus_text(gpus)} and {counted(cpus, 'CPU')} each"


def _available(nodes: tuple[AllocatedNode, ...]) -> str:
    return ", ".join(f"{node.name} with {gpus_text(node.gpus)} and {counted(node.cpus, 'CPU')}" for node in nodes)
