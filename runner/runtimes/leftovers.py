"""What jobs of this user have left on a node because it died under them, or they were killed outright.

Each thing on a node carries its job in its name: ``PREFIX JOB``, where a job in Slurm begins with Slurm's number.
"""

from __future__ import annotations

from runner.model.plan import Plan
from runner.model.schedulers import SCHEDULERS
from runner.model.step import JOB_ID, LIVE, Argument, Text, Var, text

# Shell function: whether a job's thing is left over. Arguments: the JOB of its name; the numbers of the user's jobs
# that Slurm knows (empty: unknown); whether no other job of the user can be on this node (yes or no).
IS_LEFT = """\
is_left() {
  [ "$3" != yes ] || return 0
  case $1 in [0-9]*) ;; *) return 1 ;; esac
  case " $2 " in "  " | *" ${1%%[!0-9]*} "*) return 1 ;; esac
}
"""


def job_of(plan: Plan) -> Argument:
    """The JOB of a name: several runs in one allocation have different ones."""
    return (Var("SLURM_JOB_ID"), Text("."), Var(JOB_ID)) if plan.existing_allocation else (Var(JOB_ID),)


def known(plan: Plan) -> tuple[Argument, Argument]:
    """The last two arguments of ``is_left``."""
    alone = plan.whole_nodes and plan.existing_allocation is None
    live = (Var(LIVE),) if SCHEDULERS[plan.scheduler].launcher == "srun" else text("")
    return live, text("yes" if alone else "no")
