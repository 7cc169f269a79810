"""Which facts of a site that one job depends on are unconfirmed. Pure."""

from __future__ import annotations

from runner.model.backends import SCHEDULERS
from runner.model.plan import Plan
from runner.model.site import Site
from runner.planning.wireup import BY_MPI

WORD = "unconfirmed"  # in the source of a fact
# Of no job: of people's plans, of `env create` and `expect`, of limits that are only checked, of what an image is
# compared with.
_OF_NO_JOB = (
    *("home", "scratch", "hardware", "fabric", "image_tags"),
    *("options", "max_walltime_s", "node.count", "walltime_s"),
)


def unconfirmed(plan: Plan, site: Site) -> tuple[str, ...]:
    """Keys of the site's facts without a confirmed source that shape this job, sorted."""
    return tuple(sorted(key for key, source in site.sources.items() if WORD in source and _shapes(key, plan, site)))


def _shapes(key: str, plan: Plan, site: Site) -> bool:
    section, _, name = key.partition(".")
    if key in _OF_NO_JOB or section in _OF_NO_JOB:
        return False
    if section == "ways":
        runtime, _, what = name.partition(".")
        return runtime == plan.runtime and not what.startswith(("kind", "framework")) and _in_env(what, plan, site)
    if section == "env":
        return _in_env(key, plan, site)
    if section == "mpi":
        return plan.wireup in BY_MPI
    if section == "queues":
        return plan.queue in site.queues and name in ("", plan.queue)
    return _decided(key, plan, site)


def _decided(key: str, plan: Plan, site: Site) -> bool:
    """Whether the site's value is the one that the job has, and it makes a difference."""
    scheduler, given = SCHEDULERS[plan.scheduler], dict(plan.directives)
    section, _, setting = key.partition(".")
    if section == scheduler.section:
        return plan.settings.shapes(setting, given, whole_nodes=plan.whole_nodes, mpi=plan.mpi)
    of_memory = not any(option in given for option in scheduler.memory_options)
    return {
        "transport": plan.nodes > 1,
        "local_scratch": bool(plan.stage),
        "account_suffix": plan.account is not None,
        "needs": plan.account is not None,
        "queue": plan.queue == site.queue,
        "node.memory_mb": of_memory and plan.memory_mb > 0 and plan.settings.asks_memory,
    }.get(key, True)


def _in_env(key: str, plan: Plan, site: Site) -> bool:
    """True but for a variable of the site that the job has not, or has with another value."""
    section, _, name = key.partition(".")
    if section != "env" or not name:
        return True
    way = site.ways.get(plan.runtime)
    value = (way.env if way is not None else {}).get(name, site.env.get(name))
    return value is not None and dict(plan.env).get(name) == value
