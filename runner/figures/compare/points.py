"""B against A at one point: a verdict, and what is missing for one. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

from runner.figures.compare.launches import MeasuredLaunch, doubts_of, in_order
from runner.model.expectation import ComparedPoint, ComparedSide, Judgement
from runner.statistics.comparison import Comparison, compare
from runner.statistics.launches import mean_rate, needed


def compare_point(
    first: Sequence[MeasuredLaunch],
    second: Sequence[MeasuredLaunch],
    margin: float,
    *,
    fail_below: float | None = None,
    settings: Sequence[str] = (),
    not_proven: tuple[int, int] = (0, 0),
) -> ComparedPoint:
    """The launches of two sides, none empty, by the order in which they ran.

    Args:
        margin: share, above 0. fail_below: the ratio of B to A that B must reach.
        not_proven: how many further launches of each side are not measured.
    """
    second_runs = {launch.run for launch in second}
    launches = in_order((*first, *second))
    order = "".join("B" if launch.run in second_runs else "A" for launch in launches)
    made = compare(order, [launch.figure.value for launch in launches], margin)
    verdict, why = made.verdict, made.why
    apart = "; ".join(_apart(launches))
    if apart:
        verdict, why = "no verdict", apart
    return ComparedPoint(
        gpus=launches[0].gpus,
        settings=tuple(settings),
        first=_side(first, not_proven[0]),
        second=_side(second, not_proven[1]),
        order=order,
        verdict=verdict,
        change=made.change,
        low=made.low,
        high=made.high,
        why=why,
        spread=made.deviation,
        launches_needed=needed(made.deviation),
        judgement=judgement_of(made, fail_below, is_apart=bool(apart) or "interleaved" in made.why),
    )


def _side(launches: Sequence[MeasuredLaunch], not_proven: int) -> ComparedSide:
    ordered = in_order(launches)
    return ComparedSide(
        tuple(launch.run for launch in ordered),
        not_proven,
        mean_rate([launch.figure.value for launch in ordered]).value,
        ordered[0].figure.unit,
        doubts_of(ordered),
    )


def _apart(launches: Sequence[MeasuredLaunch]) -> Iterable[str]:
    """Why launches did not run side by side, so that what changed in between is in their difference."""
    if any(launch.nodes != launches[0].nodes for launch in launches):
        names = sorted({", ".join(sorted(launch.nodes)) or "unknown" for launch in launches})
        shown = f"{' / '.join(names[:3])}{' ...' if len(names) > 3 else ''}"
        yield f"the launches ran on different nodes ({shown}), and the nodes may be all of the difference"
    else:
        yield from _other_gpus([launch for launch in launches if launch.plan.device == "cuda"])
    unknown = [launch.run for launch in launches if not launch.began_s]
    if unknown:
        yield f"it is unknown when {unknown[0]} ran"
        return
    # What the last one ends with does not matter; of another, no end is no proof that the next one had to wait for it.
    endless = [launch.run for launch in launches[:-1] if not launch.ended_s]
    if endless:
        yield f"it is unknown when {endless[0]} ended, so the next launch may have run at the same time"
        return
    for before, after in pairwise(launches):
        if before.ended_s > after.began_s:
            yield f"{before.run} and {after.run} ran at the same time"
            return


def _other_gpus(launches: Sequence[MeasuredLaunch]) -> Iterable[str]:
    unknown = next((launch.run for launch in launches if not launch.devices), "")
    other = next((launch.run for launch in launches if launch.devices != launches[0].devices), "")
    if unknown:
        yield f"the records do not say on which GPUs of the nodes {unknown} ran"
    elif other:
        yield (
            f"{launches[0].run} and {other} ran on different GPUs of the nodes, and healthy GPUs differ by several per "
            "cent"
        )


def judgement_of(made: Comparison, fail_below: float | None, *, is_apart: bool) -> Judgement:
    """Whether B reaches that ratio to A, by the 95 % interval; ``is_apart``: the launches were not side by side."""
    if fail_below is None:
        return ""
    if is_apart or made.low is None or made.high is None:
        return "cannot tell"
    if 1.0 + made.high < fail_below:
        return "below"
    return "good" if 1.0 + made.low >= fail_below else "cannot tell"
