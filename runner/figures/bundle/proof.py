"""The verdict on a run, made anew from what a bundle has of it: no clock, scheduler or disk of this machine counts."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from runner import __version__
from runner.core.errors import NotProvenError, RunnerError
from runner.core.files import sha256
from runner.core.text import counted
from runner.jobs.directory import SCRIPT, RunDirectory
from runner.jobs.sameness import FIX, copy_among, first_rank_of, identity_of
from runner.jobs.verdict import judge
from runner.model.figure import figure_keys
from runner.model.output import BundledRun
from runner.model.verdict import Verdict

PLAN, VERDICT = "plan.json", "verdict.json"
# Of figures that two machines compute from the same numbers: their libraries' last digits may differ.
_SAME = 1e-12
_MOST_RANKS = 1_000_000


def proven_run(root: Path, redacted: dict[str, str]) -> BundledRun:
    """The run in a directory, with the verdict that its records give.

    Args:
        root: of the run, with the names of a run directory. redacted: file -> SHA-256 of what it was before.

    Raises:
        NotProvenError: the records do not give the verdict that is there, or it is not ``measured``.
    """
    run = RunDirectory(root)
    try:
        verdict = _judged(run, redacted)
        plan = run.needed_plan()
    except RunnerError as error:
        raise NotProvenError(f"{run.run_id}: {error.what}", where=error.where or run.run_id) from None
    except (
        ArithmeticError,
        AssertionError,
        AttributeError,
        LookupError,
        TypeError,
        ValueError,
        RecursionError,
    ) as error:
        raise NotProvenError(f"{run.run_id}: its records cannot be judged: {error}", where=run.run_id) from None
    stored = run.verdict
    if stored is None:
        raise NotProvenError(f"{run.run_id} has no verdict that can be read", where=f"{run.run_id}/{VERDICT}")
    key = difference(msgspec.to_builtins(stored), msgspec.to_builtins(verdict))
    if key:
        raise NotProvenError(
            f"the verdict on {run.run_id} is not what its records give: {key} differs",
            where=f"{run.run_id}/{VERDICT}",
            fix="if nothing was altered, it was judged by another version of gpu-runner: see bundle.json",
        )
    if verdict.outcome != "measured" or verdict.images_per_s is None:
        raise NotProvenError(f"{run.run_id} is {verdict.outcome}: only measured runs carry a figure", where=run.run_id)
    return BundledRun(
        run=run.run_id,
        recipe=plan.recipe,
        site=plan.site,
        gpus=plan.gpus,
        nodes=plan.nodes,
        precision=verdict.precision,
        steady=verdict.steady,
        transport=verdict.transport,
        forced=verdict.forced,
        version=__version__,
        redacted=redacted,
        arm=plan.arms[-1],
        **figure_keys(verdict, plan.arms[-1]),
    )


def check_different(runs: Iterable[Path]) -> None:
    """Whether each of these runs, which were proven, is a launch of its own.

    Raises:
        NotProvenError: two have the same first rank, which began at the same instant: one is a copy.
    """
    twice = copy_among((run.run_id, identity_of(first_rank_of(run))) for run in map(RunDirectory, runs))
    if twice is not None:
        first, other = twice
        raise NotProvenError(f"{first} and {other} are one launch: one is a copy of the other", where=other, fix=FIX)


def difference(given: Any, expected: Any, key: str = "") -> str:
    """The key of the first thing in which two verdicts differ; empty if they are the same. Floats may differ in their
    last digits, and NaN is never the same.
    """
    if isinstance(given, dict) and isinstance(expected, dict):
        parts = ((name, given.get(name), expected.get(name)) for name in {**expected, **given})
    elif isinstance(given, list | tuple) and isinstance(expected, list | tuple) and len(given) == len(expected):
        parts = ((str(place), *pair) for place, pair in enumerate(zip(given, expected, strict=True)))
    elif type(given) is type(expected) is float:
        return "" if math.isclose(given, expected, rel_tol=_SAME) else key
    else:
        return "" if given == expected and type(given) is type(expected) else key
    return next((found for name, one, two in parts if (found := difference(one, two, f"{key}.{name}".strip(".")))), "")


def _judged(run: RunDirectory, redacted: dict[str, str]) -> Verdict:
    """The verdict by today's rules on what is there.

    Raises:
        RunnerError: a file that it hangs on is missing, or not the one that the job had.
    """
    tasks = run.needed_plan().tasks_per_node
    recorded = sum(path.name.endswith(".start.json") for path in run.ranks.iterdir()) if run.ranks.is_dir() else 0
    if min(tasks, default=0) < 1 or sum(tasks) != recorded or recorded > _MOST_RANKS:
        raise NotProvenError(f"its plan is for {counted(sum(tasks), 'rank')}, of which {recorded} have records")
    submitted = run.submitted
    script = redacted.get(SCRIPT) or sha256((run.path / SCRIPT).read_bytes() if (run.path / SCRIPT).is_file() else b"")
    if submitted is None or submitted.script_sha256 != script:
        raise NotProvenError("its script is not the one that was submitted", where=f"{run.run_id}/{SCRIPT}")
    evidence = run.evidence
    if any(not start.plan_sha256 for start in evidence.starts.values()):
        raise NotProvenError("not every rank says which plan it had")
    plan_sha256 = redacted.get(PLAN) or evidence.plan_sha256
    if evidence.has_older_records:
        raise NotProvenError("its records are of an older version, from which no figure can be made")
    return judge(dataclasses.replace(evidence, disk_full=False, plan_sha256=plan_sha256))


def canonical_json(value: Any) -> bytes:
    """JSON as every file of ours in a bundle is written."""
    return (json.dumps(msgspec.to_builtins(value), indent=2, sort_keys=True) + "\n").encode("ascii")
