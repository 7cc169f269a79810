"""Where a job's files lie, against the site's rules for file systems: homes, purged scratch, workspaces that expire."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from runner.checks.registry import Case, Seen, Workspace, rule
from runner.model.plan import Finding, Plan
from runner.model.site import Site

_DAY_S = 86400
_QUEUED_S = 2 * _DAY_S  # a workspace that outlives the job by less may end while the job waits for its turn


@rule("run-directory-in-home", "workspace-expires")
def check_storage(case: Case) -> Iterator[Finding]:
    """What the site's rules have against the places of this job's files."""
    yield from findings(case.plan, case.site, case.observed.storage)


def findings(plan: Plan, site: Site, seen: Seen) -> Iterator[Finding]:
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
