"""What is known of a run, in the one form in which commands print it as JSON."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from runner.core.hide import hidden_command
from runner.jobs.life import Standing
from runner.jobs.nodes import nodes_of
from runner.jobs.run import CODE_DIFF, Run, utc
from runner.jobs.watch import presence
from runner.model.figure import figure_of
from runner.model.job import NodeShare, Phase
from runner.model.output import RunFacts, ShownRun
from runner.model.plan import COPY, PlanRecord, is_copied
from runner.model.records import StartRecord
from runner.model.verdict import Verdict

Now = Verdict | Standing | None

# Where Slurm reports to a task which GPUs of its node the job has, the most exact first.
_GPUS = ("SLURM_STEP_GPUS", "SLURM_JOB_GPUS")


def run_facts(run: Run, now: Now) -> RunFacts:
    """All facts about a run, from its directory and ``now``: its verdict or state; None where it was just submitted.

    No scheduler is queried. What cannot be read is empty, 0 or None.
    """
    return RunFacts(**_facts(run, run.plan, now))


def shown_run(run: Run, now: Now) -> ShownRun:
    """The same, and its command line, the user's code, the image, the nodes and GPUs it had.

    Raises:
        UsageError: its plan cannot be read.
    """
    plan, command, code, ended = run.needed_plan(), run.command, run.code, run.ended
    return ShownRun(
        **_facts(run, plan, now),
        command_line=hidden_command(command.arguments),
        typed_in=command.directory,
        rerun_of=command.rerun_of,
        code=code,
        code_diff=str(run.path / CODE_DIFF) if code and code.diff_kept else "",
        code_copy=str(run.path / COPY) if is_copied(plan) else "",
        image_digest=plan.image.digest,
        image_file=plan.image.path,
        image_sha256=plan.image.sha256,
        node_list=_shares(run.records.starts, plan),
        allocated=ended.allocated if ended else "",
        forced=plan.forced,
    )


def _facts(run: Run, plan: PlanRecord | None, now: Now) -> dict[str, Any]:
    submitted, provenance, start, marker = run.submitted, run.provenance, run.records.start(0), run.marker
    started, ended = _counts(run, now)
    verdict = now if isinstance(now, Verdict) else None
    return {
        "run": run.run_id,
        "directory": str(run.path),
        "name": plan.job_name if plan else "",
        "job": now.job_id if isinstance(now, Standing) else submitted.job_id if submitted else "",
        "state": _state(now),
        "scheduler": now.progress.state if isinstance(now, Standing) else run.ended,
        "site": plan.site if plan else "",
        "recipe": plan.recipe if plan else "",
        "runtime": plan.runtime if plan else "",
        "image": plan.image.pinned if plan else "",
        "gpus": plan.gpus if plan else 0,
        "nodes": plan.nodes if plan else 0,
        "ranks": plan.tasks if plan else 0,
        "ranks_started": started,
        "ranks_ended": ended,
        "submitted": utc(submitted.submitted_s) if submitted else None,
        "started": utc(start.time_s) if start else None,
        "ended": utc(marker.end_s) if marker else None,
        "findings": provenance.findings,
        "unconfirmed": provenance.unconfirmed,
        "verdict": verdict,
        "exit_code": verdict.exit_code if verdict else None,
        "figure": figure_of(verdict, plan.arms[-1] if plan else None),
    }


def _state(now: Now) -> Phase:
    if now is None:
        return "pending"
    if isinstance(now, Verdict):
        return "unknown" if now.outcome == "unknown" else "ended"
    return now.progress.state.phase if now.progress.state else "unknown"


def _counts(run: Run, now: Now) -> tuple[int, int]:
    """How many ranks have recorded their start, and their end."""
    if now is None:
        return 0, 0
    if isinstance(now, Standing):
        return now.progress.started, now.progress.ended
    try:
        there = presence(run)
    except OSError:
        return 0, 0
    return len(there.starts), len(there.exits)


def _shares(starts: Mapping[int, StartRecord], plan: PlanRecord) -> tuple[NodeShare, ...]:
    """The nodes in the order of their first ranks, with the GPUs that the ranks had there."""
    places = nodes_of(starts, plan.tasks_per_node)
    of_nodes: dict[str, list[StartRecord]] = {}
    for rank, start in starts.items():
        of_nodes.setdefault(places[rank], []).append(start)
    return tuple(
        NodeShare(own[0].node_name or own[0].host, tuple(start.rank for start in own), _numbers(own) or _taken(own))
        for own in of_nodes.values()
    )


def _numbers(starts: list[StartRecord]) -> tuple[int, ...]:
    """The job's GPUs on a node, as the scheduler reported them to its tasks."""
    environment = starts[0].environment
    parts = next((environment[name] for name in _GPUS if environment.get(name)), "").split(",")
    return tuple(sorted(int(part) for part in parts)) if all(part.isdecimal() for part in parts) else ()


def _taken(starts: Iterable[StartRecord]) -> tuple[int, ...]:
    return tuple(sorted({start.device_index for start in starts if start.device_index is not None}))
