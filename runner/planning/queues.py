"""The queue (partition, QOS) of a job, its scheduler options, and its nodes in an existing allocation. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from runner.core.errors import RefusedError, UsageError
from runner.core.text import counted, gpus_text
from runner.model.job import AllocatedNode, Allocation
from runner.model.plan import StepNodes
from runner.model.request import Request
from runner.model.site import Queue, Site


def queue_misfit(queue: Queue, gpus: int, nodes: int, walltime_s: int) -> str:
    """Why a job does not fit into a queue; empty if it does."""
    if nodes < queue.min_nodes:
        return f"takes {queue.min_nodes} nodes or more, and {nodes} are requested"
    if queue.max_nodes is not None and nodes > queue.max_nodes:
        return f"takes at most {queue.max_nodes} nodes, and {nodes} are requested"
    if queue.max_gpus is not None and gpus > queue.max_gpus:
        return f"takes at most {queue.max_gpus} GPUs, and {gpus} are requested"
    if queue.max_walltime_s is not None and walltime_s > queue.max_walltime_s:
        return f"takes jobs of at most {queue.max_walltime_s} s, and {walltime_s} s are requested"
    return ""


def fitting_queue(queues: Mapping[str, Queue], gpus: int, nodes: int, walltime_s: int) -> str | None:
    """The first queue that takes such a job without being named; None if there is none."""
    found = (
        name for name, queue in queues.items() if not (queue.by_name or queue_misfit(queue, gpus, nodes, walltime_s))
    )
    return next(found, None)


def choose_queue(site: Site, requested: str | None, gpus: int, nodes: int, walltime_s: int) -> str | None:
    """The queue of a job: the user's, else the site's, else the first that fits, else the first of all (which a check
    will refuse); None leaves it to the scheduler.
    """
    chosen = requested or site.queue or fitting_queue(site.queues, gpus, nodes, walltime_s)
    return chosen or next(iter(site.queues), None)


def with_queue(site: Site, request: Request) -> tuple[Site, Request]:
    """The site with the nodes of the queue that is requested, by its name or by the type of its GPUs; and the request,
    without a type that the queue decides.

    Raises:
        UsageError: the type is that of another queue.
    """
    wanted = (request.gpu_type or "").lower()
    of_type = next((name for name, queue in site.queues.items() if wanted and queue.gpu_type == wanted), None)
    name = request.queue or of_type or site.queue
    queue = site.queues.get(name or "", Queue())
    if of_type is not None and queue.gpu_type not in ("", wanted):
        raise UsageError(
            f"the GPUs of {name} are {queue.gpu_type}; {wanted} are in {of_type}",
            where="--gpu-type and --queue",
            fix=f"leave out --queue, or name {of_type}",
        )
    if wanted and queue.gpu_type == wanted:
        request = msgspec.structs.replace(request, queue=name, gpu_type=None)
    return msgspec.structs.replace(
        site, node=queue.node or site.node, hardware=queue.hardware or site.hardware
    ), request


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
