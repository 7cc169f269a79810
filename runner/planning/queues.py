"""Which queue (partition, QOS) a job goes to, what its nodes are, and whether the job fits."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from runner.errors import UsageError
from runner.model.request import Request
from runner.model.site import Queue, Site


def misfit(queue: Queue, gpus: int, nodes: int, walltime_s: int) -> str:
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


def fitting(queues: Mapping[str, Queue], gpus: int, nodes: int, walltime_s: int) -> str | None:
    """The first queue that takes such a job without being named; None if there is none."""
    found = (name for name, queue in queues.items() if not (queue.by_name or misfit(queue, gpus, nodes, walltime_s)))
    return next(found, None)


def choose(site: Site, requested: str | None, gpus: int, nodes: int, walltime_s: int) -> str | None:
    """The queue of a job: the user's, else the site's, else the first that fits, else the first of all (which a check
    will refuse); None leaves it to the scheduler.
    """
    chosen = requested or site.queue or fitting(site.queues, gpus, nodes, walltime_s)
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
