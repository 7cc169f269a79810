"""Options of sbatch that are refused, and why: the plan decides them, or they would break a run.

Everything else goes through as it is: dependency, reservation, nodelist, exclude, constraint, licenses, mail, begin,
deadline, nice, qos, comment, exclusive (sbatch(1), Slurm 22.05 to 26.05).
"""

from __future__ import annotations

import re

from runner.backends.schedulers.slurm import MEMORY, settings
from runner.core.errors import UsageError
from runner.model.plan import Plan

# Option -> what it follows from.
_PLANNED = {
    **dict.fromkeys(("nodes", "ntasks", "ntasks-per-node", "mincpus"), "--gpus and --nodes"),
    **dict.fromkeys(("ntasks-per-core", "ntasks-per-socket", "ntasks-per-gpu", "overcommit"), "--gpus and --nodes"),
    **dict.fromkeys(("sockets-per-node", "cores-per-socket", "extra-node-info", "spread-job"), "--gpus and --nodes"),
    **dict.fromkeys(("gpus", "gpus-per-node", "gres"), "--gpus and --gpu-type"),
    "job-name": "--name",
    "partition": "--queue",
    "account": "--account",
    "cpus-per-task": "--cpus-per-gpu",
    "cpus-per-gpu": "--cpus-per-gpu",
    "time": "--time",
    "image": "--image",
    "module": "the site's ways",
}
_HIDES = "each rank would see its own GPU only, and ranks pin themselves by local rank"
_IN_CONTAINER = "the batch script itself would run in the container, where there is no srun: use --runtime and --image"
_FILES = "a run keeps its script's output below logs/"
_REFUSED = {
    "array": "all its jobs would write into one run directory: submit once for each",
    "requeue": "a second start would find the records of the first: submit again",
    **dict.fromkeys(("gpus-per-task", "gpus-per-socket", "gpu-bind", "tres-bind", "tres-per-task"), _HIDES),
    **dict.fromkeys(("output", "error", "input", "open-mode"), _FILES),
    "chdir": "the script starts in the run directory: see --runs",
    "wrap": "the runner writes the script",
    **dict.fromkeys(
        ("export", "export-file", "get-user-env"),
        "nothing of a login shell reaches a job: use --env, or slurm.export of a site file",
    ),
    "signal": "the script forwards signals to the ranks, and asks for one near the time limit itself",
    "no-requeue": "every script has it",
    "distribution": "the plan says which rank is on which node",
    "clusters": "states and logs come from the cluster that this host belongs to: submit from a host of the other one",
    "wait": "sbatch would not return until the job ends: `submit --wait`, or `wait` (-S wait=SECONDS is srun's option)",
    **dict.fromkeys(("test-only", "help", "usage", "version"), "sbatch would submit nothing: use --dry-run"),
    **dict.fromkeys(("parsable", "quiet", "verbose"), "the runner reads sbatch's output"),
    **dict.fromkeys(("uid", "gid"), "a run belongs to the user who submits it"),
    "container": _IN_CONTAINER,
}

_SIZE = re.compile(r"[0-9]{1,12}[KMGT]?\Z", re.ASCII | re.IGNORECASE)


def memory(plan: Plan) -> str:
    """The option of memory that the site or the job gives; empty where the plan decides.

    Raises:
        UsageError: sbatch would not take it; says why.
    """
    given = {option: value for option, value in plan.directives if option in MEMORY}
    where = "--scheduler-option, or slurm.directives of the site"
    if len(given) > 1:
        raise UsageError(f"--{' and --'.join(given)} exclude each other", where=where, fix="give one of them")
    for option, value in given.items():
        if not _SIZE.match(value):
            what = f"--{option}={value!r} is no size of memory"
            raise UsageError(what, where=where, fix=f"-S {option}=100G; -S mem=0 is all memory of each node")
    return next(iter(given), "")


def refuse(option: str, plan: Plan) -> None:
    """Nothing where the option may go to sbatch.

    Raises:
        UsageError: it may not; says why, and what to use instead.
    """
    if option not in MEMORY and any(name.startswith(option) for name in MEMORY):
        raise UsageError(
            f"--{option} is short for more than one", where="directives", fix=f"one of {', '.join(MEMORY)}"
        )
    # getopt_long(3) takes the beginning of a name for the name.
    name = option if option in _PLANNED or option in _REFUSED else _abbreviated(option)
    if option == settings(plan).queue_option:
        name = "partition"
    elif option.startswith(("container-", "no-container-")):  # Pyxis's
        name = "container"
    if not name:
        return
    of_the_site = option in settings(plan).directives
    where = f"site {plan.site}: slurm.directives.{option}" if of_the_site else f"--scheduler-option {option}"
    value = dict(plan.directives)[option]
    if option == "wait" and value:
        what = f"--wait={value!r} of srun is no number of seconds"
        raise UsageError(what, where=where, fix="-S wait=600; -S wait=0 lets the other ranks run as long as they need")
    if name in _PLANNED:
        by = _PLANNED[name]
        raise UsageError(f"--{option} is decided by the plan", where=where, fix=f"leave it out; it follows from {by}")
    raise UsageError(f"--{option} is not available: {_REFUSED[name]}", where=where, fix="leave it out")


def _abbreviated(option: str) -> str:
    """The first of these options whose name begins so; empty where none does."""
    return next((name for name in (*_REFUSED, *_PLANNED) if name.startswith(option)), "")
