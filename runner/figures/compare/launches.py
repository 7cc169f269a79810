"""Launches that are measured, as ``compare`` needs them: from run directories."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields

from runner.core.errors import NotProvenError
from runner.core.invocation import PROGRAM
from runner.jobs.comparison import code_facts
from runner.jobs.directory import RunDirectory
from runner.jobs.life import Standing, standing
from runner.jobs.nodes import nodes_of
from runner.jobs.sameness import Identity, Ran, identity_of, ran_with
from runner.model.job import ExitMarker, Submitted
from runner.model.plan import Plan
from runner.model.records import DEVICE_UUIDS, Report, StartRecord
from runner.model.verdict import Verdict


@dataclass(frozen=True, kw_only=True)
class MeasuredLaunch(Ran):
    """A run whose verdict is ``measured``.

    Attributes:
        images_per_s: of the whole world, in ``unit``. precision: its 95 % interval within the run; None where there is
            none.
        nodes: names. began_s, ended_s: Unix time, by rank 0's clock and the batch script's; 0 where unknown.
        identity: by which a copy of it is known; None where that is unknown.
        devices: UUIDs of the ranks' GPUs; empty on CPUs, and where one is unknown.
    """

    run: str
    images_per_s: float
    precision: tuple[float, float] | None
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
    if now.outcome != "measured" or now.images_per_s is None:
        why = f": {now.reasons[0]}" if now.reasons else ""
        raise NotProvenError(
            f"{run.run_id} is {now.outcome}, and only measured figures are compared{why}",
            where=str(run.path),
            fix=now.fix or "run it again, or leave it out",
        )
    return launch_of(run, now)


def launch_of(run: RunDirectory, verdict: Verdict) -> MeasuredLaunch:
    """The launch of a run with this verdict, which is ``measured``.

    Raises:
        UsageError: its plan cannot be read.
    """
    plan = run.plan()
    starts = {
        rank: start
        for rank in range(plan.tasks)
        if (start := run.read(f"ranks/{rank}.start.json", StartRecord)) is not None
    }
    ran = ran_with(run, plan, verdict, code_facts(run))
    submitted = run.read("job.json", Submitted)
    marker = run.read("exit.json", ExitMarker)
    began_s = starts[0].time_s if 0 in starts else None
    return MeasuredLaunch(
        **{name.name: getattr(ran, name.name) for name in fields(Ran)},
        run=run.run_id,
        images_per_s=verdict.images_per_s or 0.0,
        precision=verdict.precision,
        nodes=frozenset(nodes_of(starts, plan.tasks_per_node).values()),
        began_s=began_s if began_s is not None else submitted.submitted_s if submitted else 0.0,
        ended_s=marker.end_s if marker else 0.0,
        devices=_devices(run, plan, starts),
        identity=identity_of(starts.get(0)),
    )


def _devices(run: RunDirectory, plan: Plan, starts: Mapping[int, StartRecord]) -> frozenset[str]:
    """The GPUs of all ranks, by what the framework used, else by what the launcher gave to the rank."""
    if plan.device != "cuda":
        return frozenset()
    found = set()
    for rank in range(plan.tasks):
        report, start = run.read(f"ranks/{rank}.report.json", Report), starts.get(rank)
        named = (each.device_uuid for each in (report, start) if each and each.device_uuid)
        # What no UUID is known of has its number among those that the rank sees, which is the same on every GPU.
        uuid = next((each for each in named if each.startswith(DEVICE_UUIDS)), "")
        if not uuid:
            return frozenset()
        found.add(uuid)
    return frozenset(found)


def in_order(launches: Iterable[MeasuredLaunch]) -> tuple[MeasuredLaunch, ...]:
    """As they began."""
    return tuple(sorted(launches, key=lambda launch: (launch.began_s, launch.run)))
