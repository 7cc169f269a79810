"""Launches that are measured, as ``compare`` needs them: from run directories."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields

from runner.core.errors import NotProvenError
from runner.core.invocation import PROGRAM
from runner.jobs.comparison import code_facts
from runner.jobs.directory import RunDirectory
from runner.jobs.life import Standing, standing
from runner.jobs.nodes import nodes_of
from runner.jobs.sameness import Identity, Ran, identity_of, ran_with
from runner.model.figure import NO_INTERVAL, Doubt, Figure, figure_of, shared_doubts
from runner.model.plan import Plan
from runner.model.records import DEVICE_UUIDS, Report, StartRecord


@dataclass(frozen=True, kw_only=True)
class MeasuredLaunch(Ran):
    """A run whose verdict is ``measured``.

    Attributes:
        figure: of the whole world.
        nodes: names. began_s, ended_s: Unix time, by rank 0's clock and the batch script's; 0 where unknown.
        identity: by which a copy of it is known; None where that is unknown.
        devices: UUIDs of the ranks' GPUs; empty on CPUs, and where one is unknown.
    """

    run: str
    figure: Figure
    nodes: frozenset[str]
    began_s: float
    ended_s: float
    devices: frozenset[str] = frozenset()
    identity: Identity | None = None


def measured_launch(run: RunDirectory) -> MeasuredLaunch:
    """The launch of a run.

    Raises:
        NotProvenError: it is not measured, or has not ended.
        UsageError: its plan cannot be read.
    """
    now = standing(run)
    if isinstance(now, Standing):
        raise NotProvenError(f"{run.run_id} has no verdict yet", fix=f"`{PROGRAM} wait {run.run_id}`, then compare")
    plan = run.needed_plan()
    figure = figure_of(now, plan.arms[-1])
    if figure is None:
        why = f": {now.reasons[0]}" if now.reasons else ""
        raise NotProvenError(
            f"{run.run_id} is {now.outcome}, and only measured figures are compared{why}",
            where=str(run.path),
            fix=now.fix or "run it again, or leave it out",
        )
    reports = run.records.records("report", Report, range(plan.tasks))
    starts = run.records.records("start", StartRecord, range(plan.tasks))
    submitted, marker = run.submitted, run.marker
    ran = ran_with(run, plan, now, code_facts(run))
    began_s = starts[0].time_s if 0 in starts else None
    return MeasuredLaunch(
        **{each.name: getattr(ran, each.name) for each in fields(Ran)},
        run=run.run_id,
        nodes=frozenset(nodes_of(starts, plan.tasks_per_node).values()),
        began_s=began_s if began_s is not None else submitted.submitted_s if submitted else 0.0,
        ended_s=marker.end_s if marker else 0.0,
        devices=_devices(plan, starts, reports),
        identity=identity_of(starts.get(0)),
    )


def _devices(plan: Plan, starts: Mapping[int, StartRecord], reports: Mapping[int, Report]) -> frozenset[str]:
    """The GPUs of all ranks, by what the framework used, else by what the launcher gave to the rank."""
    if plan.device != "cuda":
        return frozenset()
    found = set()
    for rank in range(plan.tasks):
        named = (each.device_uuid for each in (reports.get(rank), starts.get(rank)) if each and each.device_uuid)
        # What no UUID is known of has its number among those that the rank sees, which is the same on every GPU.
        uuid = next((each for each in named if each.startswith(DEVICE_UUIDS)), "")
        if not uuid:
            return frozenset()
        found.add(uuid)
    return frozenset(found)


def in_order(launches: Iterable[MeasuredLaunch]) -> tuple[MeasuredLaunch, ...]:
    """As they began."""
    return tuple(sorted(launches, key=lambda launch: (launch.began_s, launch.run)))


def doubts_of(launches: Sequence[MeasuredLaunch]) -> tuple[Doubt, ...]:
    """What must be said with the figure of these launches: of several, their interval is another one."""
    without = NO_INTERVAL if len(launches) > 1 else ()
    return shared_doubts((launch.figure for launch in launches), without=without)
