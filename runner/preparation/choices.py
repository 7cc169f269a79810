"""What is left open by the request and settled before planning: the site's shape, runtime, environment. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from runner.core.errors import RefusedError, UsageError
from runner.model.backends import NATIVE, RUNTIMES, SCHEDULERS
from runner.model.request import Request
from runner.model.site import RuntimeAtSite, Site
from runner.planning import placement, queues
from runner.preparation.site import UserSite

FindProgram = Callable[[str], Path | None]


@dataclass(frozen=True)
class Choices:
    """What a job will use.

    Attributes:
        site: with the user's values, and in the shape of the hosts or the queue that were requested.
        request: with its account, with the queue of its type of GPU, and with its runtime where the site has no
            scheduler to choose it.
        runtime: name of the container runtime, or ``native``.
        environment: name or directory of the environment that the ranks run in; empty for none.
    """

    site: Site
    request: Request
    runtime: str
    environment: str


def choose_all(user_site: UserSite, request: Request, find_program: FindProgram) -> Choices:
    """Settle what the request leaves open.

    Args:
        find_program: where a program of this machine is; None where it is not in PATH.

    Raises:
        UsageError: options that contradict each other or the site.
        RefusedError: no runtime of the site is on this machine, and the job would run here.
    """
    site, request = queues.with_queue(placement.with_hosts(user_site.site, request.hosts), request)
    name = request.runtime if request.env_name is None else _runtime_of_environment(request)
    nodes = SCHEDULERS[site.scheduler].nodes
    if nodes == "this-machine":
        name = _runtime_of_this_machine(site, name, find_program)
    elif nodes == "listed" and name is None:
        name = without_scheduler(site.runtimes, site.device, lambda _program: True)
    if request.image is not None and not RUNTIMES[name or site.runtimes[0]].is_container:
        containers = [each for each in site.runtimes if RUNTIMES[each].is_container]
        fix = f"--runtime {' or '.join(containers)}" if containers else "name the site's container runtime: --runtime"
        raise UsageError("a native job runs in no image", where="--image", fix=f"{fix}; or leave out --image")
    request = msgspec.structs.replace(request, account=user_site.account, runtime=name)
    environment = request.env_name or site.ways.get(NATIVE, RuntimeAtSite()).environment
    return Choices(site, request, name or site.runtimes[0], environment)


def without_scheduler(names: Iterable[str], device: str, installed: Callable[[str], bool]) -> str | None:
    """The first runtime that works without a scheduler, is installed and can use the device; None if none is.

    Args:
        installed: whether a program is in PATH.
    """
    for name in names:
        facts = RUNTIMES[name]
        if facts.without_scheduler and installed(facts.program) and (facts.brings_driver or device == "cpu"):
            return name
    return None


def _runtime_of_environment(request: Request) -> str:
    if request.runtime not in (None, NATIVE):
        what = f"{request.runtime} runs images, not environments"
        raise UsageError(what, where="--env-name", fix="leave out --runtime")
    if request.image is not None:
        raise UsageError(
            "a job runs either in an environment or in an image", where="--image", fix="leave out one of them"
        )
    return NATIVE


def _runtime_of_this_machine(site: Site, requested: str | None, find_program: FindProgram) -> str:
    """The runtime that was requested, or the first of the site's that is installed here."""
    if requested is not None:
        facts = RUNTIMES[requested]
        if facts.without_scheduler and find_program(facts.program) is None:
            raise RefusedError(f"{facts.program} is not installed on this machine", where="PATH", fix=facts.install)
        return requested
    chosen = without_scheduler(site.runtimes, site.device, lambda program: find_program(program) is not None)
    if chosen is None:
        rows = ((name, RUNTIMES[name]) for name in site.runtimes)
        known = [f"{name}: {facts.install}" for name, facts in rows if facts.without_scheduler]
        raise RefusedError(
            f"none of {', '.join(site.runtimes)} is installed on this machine",
            where="PATH",
            fix=f"install one ({'; '.join(known)})" if known else "use runtimes that work without a scheduler",
        )
    return chosen
