"""The checks that every submission passes: pure, over a plan, its site, and what was looked at on this machine.

A check is a function of any module in this folder with the decorator ``rule``, which names the codes that it can refuse
with: those are what ``--force`` takes. Nothing else lists checks or their codes.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache

import msgspec

from runner.core.errors import UsageError
from runner.core.text import instead
from runner.model.backends import SCHEDULERS
from runner.model.plan import Finding, Plan
from runner.model.site import Owned, Site
from runner.planning.wireup import BY_MPI


@dataclass(frozen=True)
class Workspace:
    """One workspace of the user's; ``left_s``: seconds until it expires."""

    name: str
    path: str
    left_s: float


@dataclass(frozen=True)
class Seen:
    """Where a job's files lie; each path as given and with its links resolved.

    Attributes:
        runs: where run directories are made.
        scratch: the user's directory on the site's scratch file system.
        image_idle_s: seconds since the image's file was last read or written; None where there is none.
    """

    home: tuple[str, ...] = ()
    runs: tuple[str, ...] = ()
    scratch: str = ""
    image_idle_s: float | None = None
    workspaces: tuple[Workspace, ...] = ()


NOTHING_SEEN = Seen()


@dataclass(frozen=True)
class Observed:
    """What was looked at on this machine; checks themselves look at nothing.

    Attributes:
        image_fix: what makes the image usable; empty if it is.
        image_problem: why the image cannot be used; empty if it can.
        missing_sources: mount sources that do not exist here.
        run_directory: where run directories are made: the path as given, and with its links resolved.
        run_directory_problem: why the runtime cannot mount the run directory; None if it can.
        login_node: why this machine, which would run the job, looks like a cluster's login node; empty if it does not.
        environment_problem, environment_fix: what a program without a container lacks here; empty if nothing.
        absent: names of the user's values that the site needs and that are not set (``account``).
        plugin_problem, plugin_fix: why srun could not start the runtime here; empty if it can.
        left_open: keys that jobs need and the site's file leaves open (``# UNKNOWN key``).
        site_file: the site's file, or its name where it is a shipped one; as a command takes it.
        defaulted: keys that the site's file leaves open and to their defaults (``# DEFAULT key``).
        storage: where the job's files lie.
        home: the user's home directory, as given.
        horovod_use: where the user's program, or the recipe's, is known to use Horovod; empty where it is not.
        caches: directories with the user's caches that exist.
        links_left_out: tracked links that a copy of the user's files will not have.
        image_owner: whose the image's file is, where it is another user's than the store's, root's or this one's.
    """

    image_problem: str = ""
    image_fix: str = ""
    missing_sources: tuple[str, ...] = ()
    run_directory: tuple[str, ...] = ()
    run_directory_problem: str | None = None
    absent: tuple[Owned, ...] = ()
    login_node: str = ""
    environment_problem: str = ""
    environment_fix: str = ""
    plugin_problem: str = ""
    plugin_fix: str = ""
    left_open: tuple[str, ...] = ()
    site_file: str = ""
    defaulted: tuple[str, ...] = ()
    storage: Seen = NOTHING_SEEN
    home: str = ""
    image_owner: str = ""
    horovod_use: str = ""
    caches: tuple[str, ...] = ()
    links_left_out: tuple[str, ...] = ()


@dataclass(frozen=True)
class Case:
    """What a rule looks at."""

    plan: Plan
    site: Site
    observed: Observed


Rule = Callable[[Case], Iterator[Finding]]
_RULES: list[tuple[Rule, frozenset[str]]] = []


def rule(*refuses: str) -> Callable[[Rule], Rule]:
    """Register a check.

    Args:
        refuses: codes of its findings that can refuse; those that only warn need none.
    """

    def register(function: Rule) -> Rule:
        _RULES.append((function, frozenset(refuses)))
        return function

    return register


@cache
def rules() -> list[tuple[Rule, frozenset[str]]]:
    """Every check, with the codes that it can refuse with; the general ones first."""
    package = importlib.import_module(__package__)
    names = {module.name for module in pkgutil.iter_modules(package.__path__)}
    for name in ("rules", *sorted(names - {"rules"})):
        importlib.import_module(f"{__package__}.{name}")
    return _RULES


def codes() -> frozenset[str]:
    """What ``--force`` takes."""
    return frozenset(code for _, refuses in rules() for code in refuses)


def check(plan: Plan, site: Site, observed: Observed, force: Iterable[str] = ()) -> tuple[Finding, ...]:
    """All findings, refusals first; those whose code is in ``force`` only warn, and say that they were forced.

    Raises:
        UsageError: there is no such code.
    """
    forced, known = frozenset(force), codes()
    for code in sorted(forced - known):
        raise UsageError(
            f"no check has the code {code!r}",
            where="--force",
            fix=instead(code, known, f"codes: {', '.join(sorted(known))}"),
        )
    case = Case(plan, site, observed)
    findings = []
    for function, refuses in rules():
        for finding in function(case):
            declared = finding.severity != "refuse" or finding.code in refuses
            assert declared, f"{function.__name__} refuses with {finding.code!r}, which its @rule does not name"
            findings.append(_forced(finding, forced))
    return tuple(sorted(findings, key=lambda finding: finding.severity != "refuse"))


def refuses(findings: tuple[Finding, ...]) -> bool:
    """Whether a submission must not go out."""
    return any(finding.severity == "refuse" for finding in findings)


def _forced(finding: Finding, codes: frozenset[str]) -> Finding:
    if finding.severity == "refuse" and finding.code in codes:
        return msgspec.structs.replace(finding, severity="warn", forced=True)
    return finding


UNCONFIRMED = "unconfirmed"  # in the source of a fact
# Of no job: of people's plans, of `env create` and `expect`, of limits that are only checked, of what an image is
# compared with.
_OF_NO_JOB = (
    *("home", "scratch", "hardware", "fabric", "image_tags"),
    *("options", "max_walltime_s", "node.count", "walltime_s"),
)


def unconfirmed(plan: Plan, site: Site) -> tuple[str, ...]:
    """Keys of the site's facts without a confirmed source that shape this job, sorted."""
    return tuple(
        sorted(key for key, source in site.sources.items() if UNCONFIRMED in source and _shapes(key, plan, site))
    )


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
