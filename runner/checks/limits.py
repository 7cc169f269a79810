"""What a site's queues, clock and processors give a job."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from runner.checks.registry import Case, rule
from runner.core.text import counted, gpus_text, instead
from runner.model.backends import SCHEDULERS
from runner.model.plan import Finding, Plan
from runner.model.site import Queue, Site
from runner.planning.queues import fitting_queue, queue_misfit


@rule("queue-unfit")
def _queue(case: Case) -> Iterator[Finding]:
    plan, site = case.plan, case.site
    queue, gpus = site.queues.get(plan.queue or ""), plan.gpus
    why = queue_misfit(queue, gpus, plan.nodes, plan.walltime_s) if queue is not None else ""
    if why:
        fits = fitting_queue(site.queues, gpus, plan.nodes, plan.walltime_s)
        fix = f"--queue {fits}" if fits else "ask for another number of nodes (--nodes) or less time (--time)"
        yield Finding("queue-unfit", "refuse", f"the queue {plan.queue} of {plan.site} {why}", fix)
    elif plan.queue and site.queues and queue is None:
        known = f"queues: {', '.join(site.queues)}"
        what = f"{plan.site} is not known to have a queue {plan.queue!r} ({known}): its limits are not checked"
        fix = instead(plan.queue, site.queues, f"nothing, if it exists; else one of these {known}")
        yield Finding("queue-unknown", "warn", what, fix)


@rule("walltime-too-long")
def _walltime(case: Case) -> Iterator[Finding]:
    plan, site = case.plan, case.site
    if site.max_walltime_s is not None and plan.walltime_s > site.max_walltime_s:
        yield Finding(
            "walltime-too-long",
            "refuse",
            f"{plan.walltime_s} s is longer than {plan.site} allows ({site.max_walltime_s} s)",
            "ask for less with --time",
        )


@rule("too-many-cpus")
def _cpus(case: Case) -> Iterator[Finding]:
    plan, site = case.plan, case.site
    asked, gpus, node = plan.cpus_per_task // plan.gpus_per_task, plan.gpus_per_node, site.node
    if node.cpus_per_gpu is not None and asked > node.cpus_per_gpu:
        what = f"{plan.site} gives at most {counted(node.cpus_per_gpu, 'CPU')} for each GPU, not {asked}"
        yield Finding("too-many-cpus", "refuse", what, f"--cpus-per-gpu {node.cpus_per_gpu}")
    elif asked * gpus > node.cpus and SCHEDULERS[plan.scheduler].nodes == "allocated":  # ranks on CPUs may share them
        what = (
            f"{gpus_text(gpus)} with {counted(asked, 'CPU')} each do not fit on a node of {counted(node.cpus, 'CPU')}"
        )
        found = Finding("too-many-cpus", "refuse", what, f"--cpus-per-gpu {node.cpus // gpus}, or fewer GPUs a node")
        unsure = site.settings.divides_cpus({})  # the node may have hardware threads
        yield msgspec.structs.replace(found, severity="warn") if unsure else found


@rule()
def _beyond(case: Case) -> Iterator[Finding]:
    """GPUs that the job gets, and may be charged for, though no rank uses them."""
    plan, site = case.plan, case.site
    used, allocated = plan.gpus, _allocated_gpus(plan, site)
    if allocated <= used:
        return
    nodes = counted(plan.nodes, "node")
    yield Finding(
        "gpus-left-over",
        "warn",
        f"{gpus_text(allocated)} are allocated on {nodes}, and {used} are used: {plan.site} gives every node "
        f"{allocated // plan.nodes}",
        f"--gpus {allocated} uses them all",
    )


def _allocated_gpus(plan: Plan, site: Site) -> int:
    """GPUs of the whole allocation; 0 where the nodes are not allocated for this job."""
    scheduler = SCHEDULERS[plan.scheduler]
    if scheduler.nodes != "allocated" or plan.existing_allocation:
        return 0
    queue = site.queues.get(plan.queue or "", Queue())
    if queue.whole_nodes or plan.settings.takes_whole_nodes(dict(plan.directives)):
        return plan.nodes * site.node.gpus
    return plan.gpus if scheduler.nodes_differ else plan.nodes * plan.gpus_per_node
