"""A plan as a step of an allocation that is held already. Pure."""

from __future__ import annotations

import msgspec

from runner.errors import RefusedError
from runner.model.allocation import Allocation, HeldNode
from runner.model.plan import Held, Plan


def in_allocation(plan: Plan, allocation: Allocation) -> Plan:
    """The plan on nodes of the allocation: the first that have what each of its nodes needs.

    Raises:
        RefusedError: it does not fit; says what is held and what is wanted.
    """
    free = list(allocation.nodes)
    chosen: list[str] = []
    for tasks in plan.tasks_per_node:
        node = next((node for node in free if _fits(plan, tasks, node)), None)
        if node is None:
            raise RefusedError(
                f"{_wanted(plan)} does not fit the allocation that is held: {_held(allocation.nodes)}",
                where=f"job {allocation.job_id}",
                fix="ask for less (--gpus, --nodes), or hold a larger allocation",
            )
        free.remove(node)
        chosen.append(node.name)
    return msgspec.structs.replace(plan, held=Held(tuple(chosen), overlap=allocation.in_step))


def _fits(plan: Plan, tasks: int, node: HeldNode) -> bool:
    return node.gpus >= plan.gpus_per_node and node.cpus >= tasks * plan.cpus_per_task


def _wanted(plan: Plan) -> str:
    nodes = f"{plan.nodes} {'node' if plan.nodes == 1 else 'nodes'}"
    cpus = max(plan.tasks_per_node) * plan.cpus_per_task
    return f"a step of {nodes} with {plan.gpus_per_node} GPUs and {cpus} CPUs each"


def _held(nodes: tuple[HeldNode, ...]) -> str:
    return ", ".join(f"{node.name} with {node.gpus} GPUs and {node.cpus} CPUs" for node in nodes)
