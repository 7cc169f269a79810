"""What runs have cost, and what is left of a budget."""

from __future__ import annotations

import math
import os
from pathlib import Path

from runner.core.errors import UsageError
from runner.jobs.directory import Run, linked
from runner.jobs.lookup import kept_outcome

BUDGET = "RUNNER_BUDGET"


def gpu_hours(run: Run) -> float:
    """GPUs that the run's job had, times its length; 0 where its records do not tell."""
    plan, times_s = run.plan, began_and_ended_s(run)
    return max(0.0, times_s[1] - times_s[0]) * plan.occupied_gpus / 3600.0 if plan and times_s else 0.0


def began_and_ended_s(run: Run) -> tuple[float, float] | None:
    """When its first rank started, and its job ended, Unix times; None where its records do not tell.

    Of a job that ended with its node, or was killed, the end is the last sign of it: what its ranks wrote last.
    """
    plan, start, marker = run.plan, run.records.start(0), run.marker
    if plan is None or start is None or start.time_s is None:
        return None
    limit_s = start.time_s + plan.walltime_s
    return start.time_s, marker.end_s if marker is not None else min(last_sign_s(run), limit_s)


def last_sign_s(run: Run) -> float:
    """Unix time of the last change of a log or a rank's record; 0 without any."""
    folders = (run.logs.name, run.ranks.name)
    return max((run.time_s(f"{each}/{name}") for each in folders for name in run.names_in(each)), default=0.0)


def left_of_budget(runs: Path) -> float | None:
    """GPU-hours that RUNNER_BUDGET leaves this user below a directory of runs; None where it is not set. Runs that are
    over count with what they took, others with what their time limit lets them take, steps in an allocation not at all.

    Raises UsageError: it is no number.
    """
    text = os.environ.get(BUDGET, "")
    if not text:
        return None
    try:
        budget = float(text)
    except ValueError:
        budget = math.nan
    if not 0 <= budget < math.inf:
        raise UsageError(f"{text!r} is no number of GPU-hours", where=BUDGET, fix=f"{BUDGET}=20, or unset it")
    above = runs.resolve()
    return budget - math.fsum(_cost(run) for run in linked() if above in run.path.parents)


def _cost(run: Run) -> float:
    plan = run.plan
    if plan is None or plan.existing_allocation is not None:
        return 0.0
    if run.is_needless and not run.chain_end:  # an attempt whose turn may come
        return plan.most_gpu_hours
    return gpu_hours(run) if run.marker is not None or kept_outcome(run) else plan.most_gpu_hours
