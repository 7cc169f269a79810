"""What is known of a run besides its state: its command line, the user's code, the image, the nodes and GPUs it had."""

from __future__ import annotations

from collections.abc import Mapping

from runner.core.hide import hidden_command
from runner.jobs.directory import CODE, CODE_DIFF, COMMAND, RunDirectory
from runner.jobs.nodes import nodes_of
from runner.jobs.presence import presence
from runner.model.job import JobState
from runner.model.origin import CodeRecord, CommandLine, NodeShare, RunDetails
from runner.model.plan import COPY, PlanRecord, is_copied
from runner.model.records import StartRecord

# Where Slurm reports to a task which GPUs of its node the job has, the most exact first.
_GPUS = ("SLURM_STEP_GPUS", "SLURM_JOB_GPUS")


def details(run: RunDirectory) -> RunDetails:
    """What is known of a run, from its directory alone.

    Raises:
        UsageError: its plan cannot be read.
    """
    plan = run.plan()
    command = run.read(COMMAND, CommandLine) or CommandLine((), "")
    code = run.read(CODE, CodeRecord)
    ended = run.read("ended.json", JobState)
    return RunDetails(
        command_line=hidden_command(command.arguments),
        typed_in=command.directory,
        rerun_of=command.rerun_of,
        code=code,
        code_diff=str(run.path / CODE_DIFF) if code and code.diff_kept else "",
        code_copy=str(run.path / COPY) if is_copied(plan) else "",
        image_digest=plan.image.digest,
        image_file=plan.image.path,
        image_sha256=plan.image.sha256,
        node_list=_shares(_starts(run), plan),
        allocated=ended.allocated if ended else "",
        forced=plan.forced,
    )


def _starts(run: RunDirectory) -> dict[int, StartRecord]:
    found = {rank: run.read(f"ranks/{rank}.start.json", StartRecord) for rank in sorted(presence(run).starts)}
    return {rank: start for rank, start in found.items() if start is not None}


def _shares(starts: Mapping[int, StartRecord], plan: PlanRecord) -> tuple[NodeShare, ...]:
    places = nodes_of(starts, plan.tasks_per_node)
    ranks: dict[str, list[int]] = {}
    for rank in starts:
        ranks.setdefault(places[rank], []).append(rank)
    return tuple(_share([starts[rank] for rank in own]) for own in ranks.values())


def _share(starts: list[StartRecord]) -> NodeShare:
    first = starts[0]
    ranks = tuple(start.rank for start in starts)
    return NodeShare(first.node_name or first.host, ranks, _numbers(first.environment) or _taken(starts))


def _numbers(environment: Mapping[str, str]) -> tuple[int, ...]:
    """The job's GPUs on a node, as the scheduler reported them to its tasks."""
    text = next((environment[name] for name in _GPUS if environment.get(name)), "")
    parts = text.split(",")
    return tuple(sorted(int(part) for part in parts)) if all(part.isdecimal() for part in parts) else ()


def _taken(starts: list[StartRecord]) -> tuple[int, ...]:
    return tuple(sorted({start.device_index for start in starts if start.device_index is not None}))
