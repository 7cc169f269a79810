"""The existing allocation that a job becomes a step of (``run``): Slurm only."""

from __future__ import annotations

import shlex

from runner.backends.runtimes import runtime
from runner.backends.schedulers.slurm.allocation import allocation
from runner.backends.schedulers.slurm.script import salloc
from runner.core.errors import RefusedError
from runner.model.job import Allocation
from runner.model.plan import Plan
from runner.model.schedulers import SCHEDULERS
from runner.model.site import Site
from runner.preparation.clients import clients


def existing_allocation(site: Site) -> Allocation | None:
    """The allocation of this shell; None where there is none.

    Raises:
        RefusedError: it has ended, the site is a box that is not up, or its scheduler has no steps.
    """
    if not SCHEDULERS[site.scheduler].steps:
        raise RefusedError(
            f"only Slurm can run a step in an existing allocation, and the site has {site.scheduler}",
            where=f"site {site.name}",
            fix="use `submit`",
        )
    return allocation(clients(site))


def missing_allocation(planned: Plan, site: Site) -> RefusedError:
    """The error where this shell has none; its fix requests one in the shape of the job."""
    directory = clients(site)
    path = f"{shlex.quote(str(directory))}/" if directory is not None else ""
    return RefusedError(
        "this shell has no allocation: SLURM_JOB_ID is not set",
        where="this shell",
        fix=f"{path}{salloc(planned, runtime(planned.runtime).step(planned))}\n"
        "         then run the same command in its shell; or use `submit`, which requests its own allocation",
    )
