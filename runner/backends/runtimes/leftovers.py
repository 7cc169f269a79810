"""What jobs of this user have left on a node because it died under them, or they were killed outright.

Each thing on a node carries its job in its name: ``PREFIX JOB``, where a job in Slurm begins with Slurm's number.
"""

from __future__ import annotations

from runner.model.plan import Plan
from runner.model.schedulers import SCHEDULERS
from runner.model.step import JOB_ID, LIVE, Argument, Text, Var, text

# Shell function: whether a job's thing is left over. Arguments: the JOB of its name; the numbers of the user's jobs
# that Slurm knows (empty: unknown); whether no other job of the user can be on this node (yes or no); the asking JOB.
# A job that began after Slurm was asked has a higher number. PID.START.BOOT is a run without a scheduler.
IS_LEFT = """\
is_left() {
  case $1 in "$4") return 1 ;; [0-9]*) ;; *) return 1 ;; esac
  [ -n "${2// }" ] || { [ "$3" = yes ]; return; }
  case $1 in *.*.*.*) ;; *.*) return 1 ;; esac
  [ "${1%%[!0-9]*}" -lt "${4%%[!0-9]*}" ] || return 1
  case " $2 " in *" ${1%%[!0-9]*} "*) return 1 ;; esac
}
"""


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
