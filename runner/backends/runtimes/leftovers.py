"""What jobs of this user have left on a node because it died under them, or they were killed outright: the
arguments of FILE. Each thing on a node carries its job in its name.
"""

from __future__ import annotations

from pathlib import Path

from runner.model.plan import Plan
from runner.model.schedulers import SCHEDULERS
from runner.model.step import JOB_ID, LIVE, Argument, Text, Var, text

FILE = Path(__file__).parent / "shell" / "leftovers.sh"


def job_of(plan: Plan) -> Argument:
    """The JOB of a name: several runs in one allocation have different ones."""
    return (Var("SLURM_JOB_ID"), Text("."), Var(JOB_ID)) if _shares_job(plan) else (Var(JOB_ID),)


def known(plan: Plan) -> tuple[Argument, Argument]:
    """The second and third argument of ``is_left``."""
    of_slurm = SCHEDULERS[plan.scheduler].launcher == "srun"
    shared = plan.settings.lets_share_nodes(dict(plan.directives))
    alone = plan.whole_nodes and not _shares_job(plan) and not shared
    return (Var(LIVE),) if of_slurm else text(""), text("yes" if alone else "no")


def _shares_job(plan: Plan) -> bool:
    """Whether several runs have Slurm's number of one job."""
    of_study = plan.launch is not None and SCHEDULERS[plan.scheduler].launcher == "srun"
    return plan.existing_allocation is not None or of_study
