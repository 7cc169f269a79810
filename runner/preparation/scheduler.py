"""Where the client programs of a site's scheduler are."""

from __future__ import annotations

import shlex
from pathlib import Path

from runner.backends.runtimes import runtime
from runner.backends.schedulers import with_steps
from runner.core.errors import RefusedError
from runner.core.invocation import PROGRAM
from runner.model.backends import SCHEDULERS
from runner.model.job import Allocation
from runner.model.plan import Plan
from runner.model.site import Site


def clients(site: Site) -> Path | None:
    """The directory of the site's client programs; None for PATH.

    Raises:
        RefusedError: the site is a box that is not up.
    """
    if not site.box:
        return None
    from runner import box  # what makes one is long to import, and no other site needs it

    if box.inside() == site.box:
        return None
    running = box.find(site.box)
    if running is None:
        raise RefusedError(
            f"the box {site.box!r} is not up",
            where=f"site {site.name}",
            fix=f"{PROGRAM} box up --name {site.box}",
        )
    return running.bin_dir


def existing_allocation(site: Site) -> Allocation | None:
    """The allocation of this shell; None where there is none.

    Raises:
        RefusedError: it has ended, the site is a box that is not up, or its scheduler has no steps.
    """
    facts = SCHEDULERS[site.scheduler]
    if not facts.steps:
        raise RefusedError(
            f"no job of {facts.title} can be a step of an existing allocation, as jobs of Slurm can",
            where=f"site {site.name}",
            fix="use `submit`",
        )
    return with_steps(site.scheduler).allocation(clients(site))


def missing_allocation(planned: Plan, site: Site) -> RefusedError:
    """The error where this shell has none; its fix requests one in the shape of the job."""
    directory = clients(site)
    path = f"{shlex.quote(str(directory))}/" if directory is not None else ""
    command = with_steps(planned.scheduler).salloc(planned, runtime(planned.runtime).step(planned))
    return RefusedError(
        f"this shell has no allocation: {SCHEDULERS[planned.scheduler].job_variable} is not set",
        where="this shell",
        fix=f"{path}{command}\n"
        "         then run the same command in its shell; or use `submit`, which requests its own allocation",
    )
