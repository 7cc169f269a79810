"""Measured launches, and those of two sides compared at one point."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields

from runner.core.errors import NotProvenError
from runner.core.invocation import PROGRAM
from runner.jobs.code_facts import code_facts
from runner.jobs.collect import nodes_of
from runner.jobs.comparison import Identity, Ran, at_once, batch_of, identity_of, ran_with, together_doubts
from runner.jobs.directory import Run, Studies
from runner.jobs.life import Standing, standing
from runner.model.expectation import ComparedPoint, ComparedSide, Judgement
from runner.model.figure import NO_INTERVAL, Doubt, Figure, in_words, shared_doubts, spread_doubts
from runner.model.records import DEVICE_UUIDS, Report, StartRecord
from runner.model.study import Setting, Span
from runner.statistics.launches import Comparison, compare, mean_rate, needed


@dataclass(frozen=True, kw_only=True)
class MeasuredLaunch(Ran):
    """A run whose verdict is ``measured``, with the figure of the whole world.

    Attributes:
        began_s, ended_s: Unix time, by rank 0's clock and the batch script's; 0 where unknown.
        devices: UUIDs of the ranks' GPUs; empty on CPUs, and where one is unknown.
        identity: by which a copy of it is known.
    """

    run: str
    figure: Figure
    nodes: frozenset[str]
    began_s: float
    ended_s: float
    devices: frozenset[str] = frozenset()
    identity: Identity = ()

    @property
    def span(self) -> Span:
        """When and where it ran."""
        return Span(self.run, self.began_s, self.ended_s, tuple(self.nodes))


@dataclass(frozen=True)
class PointLaunches:
    """The launches of one side at one point, at least one; ``not_proven``: how many further ones are not measured.
    ``unequal``: what their study says of them together.
    """

    launches: tuple[MeasuredLaunch, ...]
    not_proven: int = 0
    unequal: tuple[Doubt, ...] = ()

    @property
    def doubts(self) -> tuple[Doubt, ...]:
        """What must be said with the figure of these launches: of several, their interval is another one."""
        without = NO_INTERVAL if len(self.launches) > 1 else ()
        of_each = shared_doubts((launch.figure for launch in self.launches), without=without)
        rates, spans = ([launch.figure.value for launch in self.launches], [launch.span for launch in self.launches])
        of_all = self.unequal or (*spread_doubts(rates), *together_doubts(at_once(spans)))
        said = in_words(of_each)
        return *of_each, *(each for each in of_all if each.words not in said)


def measured_launch(run: Run, studies: Studies | None = None) -> MeasuredLaunch:
    """The launch of a run. ``studies``: as ``seen`` of ``Run.of_study``.

    Raises:
        NotProvenError: it is not measured, or has not ended.
        UsageError: its plan cannot be read.
    """
    now = standing(run)
    if isinstance(now, Standing):
        raise NotProvenError(f"{run.run_id} has no verdict yet", fix=f"`{PROGRAM} wait {run.run_id}`, then compare")
    plan = run.needed_plan()
    figure = run.figure_by(now, plan, studies)
    if figure is None:
        why = f": {now.reasons[0]}" if now.reasons else ""
        raise NotProvenError(
            f"{run.run_id} is {now.outcome}, and only measured figures are compared{why}",
            where=str(run.path),
            fix=now.fix or ("submit it with --meter" if now.outcome == "ran" else "run it again, or leave it out"),
        )
    reports = run.records.records("report", Report, range(plan.tasks))
    starts = run.records.records("start", StartRecord, range(plan.tasks))
    submitted, marker = run.submitted, run.marker
    ran = ran_with(run, plan, now, code_facts(run), batch_of(run))
    began_s = starts[0].time_s if 0 in starts else None
    devices = [device_of(starts.get(rank), reports.get(rank)) for rank in range(plan.tasks)]
    return MeasuredLaunch(
        **{each.name: getattr(ran, each.name) for each in fields(Ran) if each.name != "figure"},
        run=run.run_id,
        figure=figure,
        nodes=frozenset(nodes_of(starts, plan.tasks_per_node).values()),
        began_s=began_s if began_s is not None else submitted.submitted_s if submitted else 0.0,
        ended_s=marker.end_s if marker else 0.0,
        devices=frozenset(devices) if plan.device == "cuda" and all(devices) else frozenset(),
        identity=identity_of(starts.get(0), reports.get(0)),
    )


def device_of(start: StartRecord | None, report: Report | None) -> str:
    """A rank's GPU, by what the framework used, else by what the launcher gave to the rank; empty where it is unknown.

    What no UUID is known of has its number among those that the rank sees, which is the same on every GPU.
    """
    named = (each.device_uuid for each in (report, start) if each and each.device_uuid)
    return next((each for each in named if each.startswith(DEVICE_UUIDS)), "")


def in_order(launches: Iterable[MeasuredLaunch]) -> tuple[MeasuredLaunch, ...]:
    """As they began."""
    return tuple(sorted(launches, key=lambda launch: (launch.began_s, launch.run)))


def compare_point(
    first: PointLaunches, second: PointLaunches, margin: float, fail_below: float | None, settings: Setting
) -> ComparedPoint:
    """The launches of two sides by the order in which they ran.

    Args:
        margin: share, above 0. fail_below: the ratio of B to A that B must reach.
    """
    second_runs = {launch.run for launch in second.launches}
    launches = in_order((*first.launches, *second.launches))
    order = "".join("B" if launch.run in second_runs else "A" for launch in launches)
    made = compare(order, [launch.figure.value for launch in launches], margin)
    apart = "; ".join(_apart(launches))
    return ComparedPoint(
        gpus=launches[0].gpus,
        settings=tuple(f"{name}={value}" for name, value in settings),
        first=_side(first),
        second=_side(second),
        order=order,
        verdict="no verdict" if apart else made.verdict,
        change=made.change,
        low=made.low,
        high=made.high,
        why=apart or made.why,
        spread=made.deviation,
        launches_needed=needed(made.deviation),
        judgement=judgement_of(made, fail_below, is_apart=bool(apart) or not made.is_balanced),
    )


def _side(side: PointLaunches) -> ComparedSide:
    ordered = in_order(side.launches)
    return ComparedSide(
        tuple(launch.run for launch in ordered),
        side.not_proven,
        mean_rate([launch.figure.value for launch in ordered]).value,
        ordered[0].figure.unit,
        side.doubts,
    )


def _apart(launches: tuple[MeasuredLaunch, ...]) -> Iterable[str]:
    """Why launches did not run side by side, so that what changed in between is in their difference."""
    on_gpus = [launch for launch in launches if launch.plan.device == "cuda"]
    if any(launch.nodes != launches[0].nodes for launch in launches):
        names = sorted({", ".join(sorted(launch.nodes)) or "unknown" for launch in launches})
        shown = f"{' / '.join(names[:3])}{' ...' if len(names) > 3 else ''}"
        yield f"the launches ran on different nodes ({shown}), and the nodes may be all of the difference"
    elif unknown := [launch.run for launch in on_gpus if not launch.devices]:
        yield f"the records do not say on which GPUs of the nodes {unknown[0]} ran"
    elif other := [launch.run for launch in on_gpus if launch.devices != on_gpus[0].devices]:
        which = f"{on_gpus[0].run} and {other[0]} ran on different GPUs of the nodes"
        yield f"{which}, and healthy GPUs differ by several per cent"
    together = at_once(launch.span for launch in launches)
    if unknown := [launch.run for launch in launches if not launch.began_s]:
        yield f"it is unknown when {unknown[0]} ran"
    # What the last one ends with does not matter; of another, no end is no proof that the next one had to wait for it.
    elif endless := [launch.run for launch in launches[:-1] if not launch.ended_s]:
        yield f"it is unknown when {endless[0]} ended, so the next launch may have run at the same time"
    elif together:
        yield f"{' and '.join(together[0])} ran at the same time"


def judgement_of(made: Comparison, fail_below: float | None, *, is_apart: bool) -> Judgement:
    """Whether B reaches that ratio to A, by the 95 % interval; ``is_apart``: the launches were not side by side."""
    if fail_below is None:
        return ""
    if is_apart or made.low is None or made.high is None:
        return "cannot tell"
    if 1.0 + made.high < fail_below:
        return "below"
    return "good" if 1.0 + made.low >= fail_below else "cannot tell"
