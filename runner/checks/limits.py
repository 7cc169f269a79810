"""What a site's queues, clock, processors and file systems allow a job."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from runner.checks.registry import Case, Seen, Workspace, rule
from runner.core.text import counted, gpus_text, instead
from runner.model.backends import SCHEDULERS
from runner.model.plan import Finding, Plan
from runner.model.site import Queue, Site
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


_DAY_S = 86400
_QUEUED_S = 2 * _DAY_S  # a workspace that outlives the job by less may end while the job waits for its turn


@rule("run-directory-in-home", "workspace-expires")
def check_storage(case: Case) -> Iterator[Finding]:
    """What the site's rules have against the places of this job's files."""
    yield from storage_findings(case.plan, case.site, case.observed.storage)


def storage_findings(plan: Plan, site: Site, seen: Seen) -> Iterator[Finding]:
    """What the site's rules have against the places of this job's files."""
    yield from _home(plan, site, seen)
    yield from _purge(plan, site, seen)
    for workspace in seen.workspaces:
        yield from _workspace(plan, seen, workspace)


def _home(plan: Plan, site: Site, seen: Seen) -> Iterator[Finding]:
    quota = site.home.quota_gb
    if site.home.for_jobs and quota is None:
        return
    why = f"holds {quota} GB" if site.home.for_jobs else "is not for jobs to write to"
    if _lies_below(seen.runs, seen.home):
        where = seen.scratch or "SCRATCH"
        yield Finding(
            "run-directory-in-home",
            "warn" if site.home.for_jobs else "refuse",
            f"the run directory lies in the home directory, which at {plan.site} {why}",
            f"--runs {where.rstrip('/')}/runs",
        )
    if plan.image.path and _lies_below((plan.image.path,), seen.home):
        size = f" ({plan.image.size_bytes / 1e9:.1f} GB)" if plan.image.size_bytes else ""
        yield Finding(
            "image-in-home",
            "warn",
            f"the image{size} lies in the home directory, which at {plan.site} {why}",
            f"RUNNER_STORE={(seen.scratch or 'SCRATCH').rstrip('/')}/images, and convert it again",
        )


def _purge(plan: Plan, site: Site, seen: Seen) -> Iterator[Finding]:
    days, idle_s = site.scratch.purge_days, seen.image_idle_s
    if days is None or idle_s is None or not seen.scratch or not _lies_below((plan.image.path,), (seen.scratch,)):
        return
    if idle_s + plan.walltime_s + _QUEUED_S > days * _DAY_S:
        yield Finding(
            "image-may-be-purged",
            "warn",
            f"the image was last used {idle_s / _DAY_S:.0f} days ago; {plan.site} removes what is {days} days unused",
            f"read it once: cat {plan.image.path} >/dev/null",
        )


def _workspace(plan: Plan, seen: Seen, workspace: Workspace) -> Iterator[Finding]:
    used = (*seen.runs, plan.image.path, *(mount.source for mount in plan.mounts))
    if workspace.left_s > plan.walltime_s + _QUEUED_S or not _lies_below(used, (workspace.path,)):
        return
    before_the_end = workspace.left_s <= plan.walltime_s
    yield Finding(
        "workspace-expires",
        "refuse" if before_the_end else "warn",
        f"the workspace {workspace.name} ({workspace.path}) expires in {workspace.left_s / 3600:.0f} hours, "
        + ("before such a job could end" if before_the_end else "and the job may have to wait"),
        f"ws_extend {workspace.name} DAYS",
    )


def _lies_below(paths: Iterable[str], tops: Iterable[str]) -> bool:
    above = [f"{top.rstrip('/')}/" for top in tops if top and top != "/"]
    return any(f"{path}/".startswith(top) for path in paths if path for top in above)
