"""Which queue (partition, QOS) a job goes to, and whether it fits."""

from __future__ import annotations

from collections.abc import Mapping

from runner.model.site import Queue, Site


def misfit(queue: Queue, nodes: int, walltime_s: int) -> str:
    """Why a job does not fit into a queue; empty if it does."""
    if nodes < queue.min_nodes:
        return f"takes {queue.min_nodes} nodes or more, and {nodes} are requested"
    if queue.max_nodes is not None and nodes > queue.max_nodes:
        return f"takes at most {queue.max_nodes} nodes, and {nodes} are requested"
    if queue.max_walltime_s is not None and walltime_s > queue.max_walltime_s:
        return f"takes jobs of at most {queue.max_walltime_s} s, and {walltime_s} s are requested"
    return ""


def fitting(queues: Mapping[str, Queue], nodes: int, walltime_s: int) -> str | None:
    """The first queue that takes such a job; None if there is none."""
    return next((name for name, queue in queues.items() if not misfit(queue, nodes, walltime_s)), None)


def choose(site: Site, requested: str | None, nodes: int, walltime_s: int) -> str | None:
    """The queue of a job: the user's, else the site's, else the first that fits, else the first of all (which a check
    will refuse); None leaves it to the scheduler.
    """
    chosen = requested or site.queue or fitting(site.queues, nodes, walltime_s)
    return chosen or next(iter(site.queues), None)
