"""What a site's queues, clock, processors and file systems allow a job."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from runner.checks.registry import Case, rule
from runner.core.text import counted, gpus_text, instead
from runner.model.backends import SCHEDULERS
from runner.model.plan import Finding
from runner.model.site import Queue
from runner.planning.placement import fitting_queue, queue_misfit


@rule("queue-unfit")
def _queue(case: Case) -> Iterator[Finding]:
    plan, site = case.plan, case.site
    queue, gpus = site.queues.get(plan.queue or ""), plan.gpus
    why = queue_misfit(queue, gpus, plan.nodes, plan.walltime_s) if queue is not None else ""
    if why:
        fits = fitting_queue(site.queues, gpus, plan.nodes, plan.walltime_s)
        fix = f"--queue {fits}" if fits else "ask for another number of nodes (--nodes) or less time (--time)"
        yield Finding("queue-unfit", "refuse", f"the queue {plan.queue} of {plan.site} {why}", fix)
    elif queue is not None and queue.warning:
        what = f"the queue {plan.queue} of {plan.site}: {queue.warning}"
        yield Finding("queue-risk", "warn", what, "nothing, if that is good; else another queue with --queue")
    elif plan.queue and site.queues and queue is None:
        known = f"queues: {', '.join(site.queues)}"
        what = f"{plan.site} is not known to have a queue {plan.queue!r} ({known}): its limits are not checked"
        fix = instead(plan.queue, site.queues, f"one of these {known}")
        yield Finding("queue-unknown", "warn", what, f"nothing, if it exists; else {fix}")


@rule("walltime-too-long")
def _walltime(case: Case) -> Iterator[Finding]:
    plan, most_s = case.plan, case.site.max_walltime_s
    if most_s is not None and plan.walltime_s > most_s:
        what = f"{plan.walltime_s} s is longer than {plan.site} allows ({most_s} s)"
        yield Finding("walltime-too-long", "refuse", what, "ask for less with --time")


@rule("over-budget")
def _budget(case: Case) -> Iterator[Finding]:
    left = case.observed.budget_left
    if left is not None and case.plan.most_gpu_hours > left and case.plan.existing_allocation is None:
        yield over_budget(case.plan.most_gpu_hours, left)


def over_budget(needed: float, left: float) -> Finding:
    """Of one job or of several together, GPU-hours."""
    what = f"it may take {needed:.2f} GPU-hours by its time limit, and RUNNER_BUDGET leaves {max(left, 0.0):.2f}"
    fix = "fewer GPUs or a shorter --time (runs that have not ended count in full), or a larger RUNNER_BUDGET"
    return Finding("over-budget", "refuse", what, fix)


@rule("too-many-cpus")
def _cpus(case: Case) -> Iterator[Finding]:
    plan, node = case.plan, case.site.node
    cpus, gpus = plan.cpus_per_task // plan.gpus_per_task, plan.gpus_per_node
    if (most := node.most_cpus_per_gpu(gpus)) is not None and cpus > most:
        what = f"{plan.site} gives at most {counted(most, 'CPU')} for each GPU, not {cpus}"
        yield Finding("too-many-cpus", "refuse", what, f"--cpus-per-gpu {most}")
    elif cpus * gpus > node.cpus and SCHEDULERS[plan.scheduler].nodes == "allocated":  # ranks on CPUs may share them
        fit = f"do not fit on a node of {counted(node.cpus, 'CPU')}"
        unsure = case.site.settings.divides_cpus({})  # the node may have hardware threads
        what = f"{gpus_text(gpus)} with {counted(cpus, 'CPU')} each {fit}"
        fix = f"--cpus-per-gpu {node.cpus // gpus}, or fewer GPUs a node"
        yield Finding("too-many-cpus", "warn" if unsure else "refuse", what, fix)


@rule()
def _beyond(case: Case) -> Iterator[Finding]:
    """GPUs that the job gets, and may be charged for, though no rank uses them."""
    plan, site = case.plan, case.site
    scheduler = SCHEDULERS[plan.scheduler]
    if scheduler.nodes != "allocated" or plan.existing_allocation:
        return
    queue = site.queues.get(plan.queue or "", Queue())
    allocated = plan.gpus if scheduler.nodes_differ else plan.nodes * plan.gpus_per_node
    if queue.whole_nodes or plan.settings.takes_whole_nodes(dict(plan.directives)):
        allocated = plan.nodes * site.node.gpus
    if allocated > plan.gpus:
        nodes = counted(plan.nodes, "node")
        what = (
            f"{gpus_text(allocated)} are allocated on {nodes}, and {plan.gpus} are used: {plan.site} gives every node "
        )
        what += f"{allocated // plan.nodes}"
        yield Finding("gpus-left-over", "warn", what, f"--gpus {allocated} uses them all")


_DAY_S = 86400
_QUEUED_S = 2 * _DAY_S  # a workspace that outlives the job by less may end while the job waits for its turn


@rule("run-directory-in-home", "workspace-expires")
def check_storage(case: Case) -> Iterator[Finding]:
    """What the site's rules for homes, purged scratch and expiring workspaces have against a job's files."""
    plan, site, observed = case.plan, case.site, case.observed
    image, scratch = (plan.image.path,), (observed.scratch or "SCRATCH").rstrip("/")
    quota, for_jobs = site.home.quota_gb, site.home.for_jobs
    if not for_jobs or quota is not None:
        where = f"lies in the home directory, which at {plan.site} "
        where += f"holds {quota} GB" if for_jobs else "is not for jobs to write to"
        if _lies_below(observed.run_directory, observed.home):
            what = f"the run directory {where}"
            yield Finding("run-directory-in-home", "warn" if for_jobs else "refuse", what, f"--runs {scratch}/runs")
        if _lies_below(image, observed.home):
            size = f" ({plan.image.size_bytes / 1e9:.1f} GB)" if plan.image.size_bytes else ""
            fix = f"RUNNER_STORE={scratch}/images, and convert it again"
            yield Finding("image-in-home", "warn", f"the image{size} {where}", fix)
    days, idle_s = site.scratch.purge_days, observed.image_idle_s
    purged_s = float("inf") if days is None or idle_s is None else days * _DAY_S - idle_s  # from now on
    if idle_s is not None and purged_s < plan.walltime_s + _QUEUED_S and _lies_below(image, (observed.scratch,)):
        what = f"the image was last used {idle_s / _DAY_S:.0f} days ago; "
        what += f"{plan.site} removes what is {days} days unused"
        yield Finding("image-may-be-purged", "warn", what, f"read it once: cat {plan.image.path} >/dev/null")
    used = (*observed.run_directory, *image, *(mount.source for mount in plan.mounts))
    for workspace in observed.workspaces:
        if workspace.left_s <= plan.walltime_s + _QUEUED_S and _lies_below(used, (workspace.path,)):
            before_the_end = workspace.left_s <= plan.walltime_s
            what = f"the workspace {workspace.name} ({workspace.path}) expires in {workspace.left_s / 3600:.0f} hours, "
            what += "before such a job could end" if before_the_end else "and the job may have to wait"
            fix = f"ws_extend {workspace.name} DAYS"
            yield Finding("workspace-expires", "refuse" if before_the_end else "warn", what, fix)


def _lies_below(paths: Iterable[str], tops: Iterable[str]) -> bool:
    above = [f"{top.rstrip('/')}/" for top in tops if top and top != "/"]
    return any(f"{path}/".startswith(top) for path in paths if path for top in above)
