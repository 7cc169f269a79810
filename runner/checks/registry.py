"""The checks that every submission passes: pure, over a plan, its site, and what was looked at on this machine.

A check is a function of any module in this folder with the decorator ``rule``, which names the codes that it can refuse
with: those are what ``--force`` takes. Nothing else lists checks or their codes.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import msgspec

from runner.core.errors import UsageError
from runner.core.text import instead
from runner.model.backends import SCHEDULERS
from runner.model.plan import Finding, Plan
from runner.model.site import Owned, RuntimeAtSite, Site
from runner.planning.wireup import BY_MPI


@dataclass(frozen=True)
class Workspace:
    """One workspace of the user's; ``left_s``: seconds until it expires."""

    name: str
    path: str
    left_s: float


@dataclass(frozen=True)
class Observed:
    """What was looked at on this machine; checks themselves look at nothing. Empty: nothing is wrong, or known.

    Attributes:
        image_problem, image_fix: why the image cannot be used.
        image_owner: whose the image's file or name is, where that is not the store's owner, root or this user.
        image_idle_s: seconds since the image's file was last read or written; None where there is none.
        missing_sources: mount sources that do not exist here.
        run_directory: where run directories are made: the path as given, and with its links resolved.
        run_directory_problem: why the runtime cannot mount it.
        home: the user's home directory, as given, and with its links resolved.
        scratch: the user's directory on the site's scratch file system.
        login_node: why this machine, which would run the job, looks like a cluster's login node.
        environment_problem, environment_fix: what a program without a container lacks here.
        program_problem, program_fix: why the user's program cannot be started.
        directory_problem, directory_fix: why others' files could run, by a directory that the program starts in, or has
            scripts or modules in.
        own_disk: what the job uses on other machines by its path, and lies on this one's own disk, below a directory
            where all may write.
        modules: that this shell has loaded, for a job that starts on other machines without a container.
        plugin_problem, plugin_fix: why srun could not start the runtime here.
        absent: names of the user's values that the site needs and that are not set (``account``).
        unlisted: values for the job that the site's own list does not have, each with the nearest there.
        site_file: the site's file, or its name where it is a shipped one; as a command takes it.
        left_open: keys that jobs need and the site's file leaves open (``# UNKNOWN key``).
        workspaces: of the user.
        horovod_use: where the user's program, or the recipe's, is known to use Horovod.
        caches: directories with the user's caches that exist.
        budget_left: GPU-hours that RUNNER_BUDGET leaves for jobs; None where it is not set.
        links_left_out, files_left_out: tracked links, and files of other users, that a copy of the user's files will
            not have.
        named_paths: files and directories of the user's, by absolute paths that the program's arguments name.
        unused_environment: virtual or conda environment of this shell, where the job takes the recipe's own image.
    """

    image_problem: str = ""
    image_fix: str = ""
    image_owner: str = ""
    image_idle_s: float | None = None
    missing_sources: tuple[str, ...] = ()
    run_directory: tuple[str, ...] = ()
    run_directory_problem: str | None = None
    home: tuple[str, ...] = ()
    scratch: str = ""
    login_node: str = ""
    environment_problem: str = ""
    environment_fix: str = ""
    program_problem: str = ""
    program_fix: str = ""
    directory_problem: str = ""
    directory_fix: str = ""
    owners: tuple[tuple[str, int], ...] = ()
    own_disk: str = ""
    modules: tuple[str, ...] = ()
    plugin_problem: str = ""
    plugin_fix: str = ""
    absent: tuple[Owned, ...] = ()
    unlisted: tuple[tuple[str, str], ...] = ()
    site_file: str = ""
    left_open: tuple[str, ...] = ()
    workspaces: tuple[Workspace, ...] = ()
    horovod_use: str = ""
    caches: tuple[str, ...] = ()
    budget_left: float | None = None
    links_left_out: tuple[str, ...] = ()
    files_left_out: tuple[str, ...] = ()
    named_paths: tuple[str, ...] = ()
    unused_environment: str = ""


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
    names = {path.stem for path in Path(__file__).parent.glob("[a-z]*.py")}
    for name in ("rules", *sorted(names - {"rules"})):
        importlib.import_module(f"{__package__}.{name}")
    return _RULES


def codes() -> frozenset[str]:
    """What ``--force`` takes."""
    return frozenset(code for _, refuses in rules() for code in refuses)


def check(plan: Plan, site: Site, observed: Observed, force: Iterable[str] = ()) -> tuple[Finding, ...]:
    """All findings, refusals first; those whose code is in ``force`` only warn, and say that they were forced. Raises
    UsageError: there is no such code.
    """
    forced, known = frozenset(force), codes()
    for code in sorted(forced - known):
        fix = instead(code, known, f"codes: {', '.join(sorted(known))}")
        raise UsageError(f"no check has the code {code!r}", where="--force", fix=fix)
    case = Case(plan, site, observed)
    findings = []
    for function, refuses in rules():
        for finding in function(case):
            declared = finding.severity != "refuse" or finding.code in refuses
            assert declared, f"{function.__name__} refuses with {finding.code!r}, which its @rule does not name"
            is_forced = finding.severity == "refuse" and finding.code in forced
            findings.append(msgspec.structs.replace(finding, severity="warn", forced=True) if is_forced else finding)
    return tuple(sorted(findings, key=lambda finding: finding.severity != "refuse"))


def refuses(findings: tuple[Finding, ...]) -> bool:
    """Whether a submission must not go out."""
    return any(finding.severity == "refuse" for finding in findings)


UNCONFIRMED = "unconfirmed"  # in the source of a fact
# Of no job: of people's plans, of `env create` and `expect`, of limits that are only checked, of what an image is
# compared with.
_OF_NO_JOB = (
    *("home", "scratch", "hardware", "fabric", "image_tags", "chaining"),
    *("options", "max_walltime_s", "node.count", "walltime_s"),
)


def unconfirmed(plan: Plan, site: Site) -> tuple[str, ...]:
    """Keys of the site's facts without a confirmed source that shape this job, sorted."""
    marked = (key for key, source in site.sources.items() if UNCONFIRMED in source)
    return tuple(sorted(key for key in marked if _shapes(key, plan, site)))


def _shapes(key: str, plan: Plan, site: Site) -> bool:
    """Whether the site's value is the one that the job has, and it makes a difference."""
    section, _, name = key.partition(".")
    scheduler, given = SCHEDULERS[plan.scheduler], dict(plan.directives)
    if key in _OF_NO_JOB or section in _OF_NO_JOB:
        return False
    if section == "ways":
        runtime, _, fact = name.partition(".")
        return runtime == plan.runtime and not fact.startswith(("kind", "framework")) and _in_env(fact, plan, site)
    if section == "env":
        return _in_env(key, plan, site)
    if section == "queues":
        return plan.queue in site.queues and name in ("", plan.queue)
    if section == scheduler.section:
        return plan.settings.shapes(name, given, whole_nodes=plan.whole_nodes, mpi=plan.mpi)
    sized = any(option in given for option in scheduler.memory_options)
    return {
        "mpi": plan.wireup in BY_MPI,
        "transport": plan.nodes > 1,
        "local_scratch": bool(plan.stage),
        "account_suffix": plan.account is not None,
        "needs": plan.account is not None,
        "queue": plan.queue == site.queue,
        "node.memory_mb": not sized and plan.memory_mb > 0 and plan.settings.asks_memory,
    }.get("mpi" if section == "mpi" else key, True)


def _in_env(key: str, plan: Plan, site: Site) -> bool:
    """True but for a variable of the site that the job has not, or has with another value."""
    section, _, name = key.partition(".")
    if section != "env" or not name:
        return True
    way = site.ways.get(plan.runtime, RuntimeAtSite())
    value = way.env.get(name, site.env.get(name))
    return value is not None and dict(plan.env).get(name) == value
