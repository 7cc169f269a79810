"""Proven figures of two sides against each other, or of one side against references."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from runner.core.errors import Exit, UsageError
from runner.core.text import counted, first_of, instead, point_text
from runner.figures.compare.launches import MeasuredLaunch, PointLaunches, compare_point
from runner.figures.compare.references import against, is_near, may_fit, none_fits, read_references, reference_for
from runner.jobs.comparison import beside_each_other, check_launches, differences, facts_for, first_difference, unlike
from runner.jobs.differences import plan_differences
from runner.model.expectation import Compared, Reference
from runner.model.plan import Finding
from runner.model.study import Setting

_REPEATS = "not-repeats"
CODES = frozenset((*(fact.code for fact in facts_for("compare")), _REPEATS))
_NOT_TELLING = "plan job_name"  # of differences between plans the one that says nothing about the figure
_MOST_POINTS = 6  # of a side, in one sentence


@dataclass(frozen=True)
class Side:
    """What a user named, as typed: a run or several, or a study with a point for each size and setting. No point is
    without launches; ``missing``: of those that have none proven, how many were wanted. ``strong``: as of ``Study``.
    """

    name: str
    points: Mapping[tuple[int, Setting], PointLaunches]
    missing: Mapping[tuple[int, Setting], int] = field(default_factory=dict)
    strong: bool = False


def compare_sides(
    first: Side, second: Side, margin: float, *, fail_below: float | None = None, force: Iterable[str] = ()
) -> Compared:
    """B against A at every point that both have; where each has one point, these are compared with each other.

    Raises:
        UsageError: no such code, the sides share a run or a launch, or have no point in common.
    """
    codes = frozenset(force)
    for code in sorted(codes - CODES):
        fix = instead(code, CODES, f"codes: {', '.join(sorted(CODES))}")
        raise UsageError(f"compare has no code {code!r}", where="--force", fix=fix)
    pairs = _pairs(first, second)
    shared = {launch.run for _, one, _ in pairs for launch in one.launches}
    shared &= {launch.run for _, _, two in pairs for launch in two.launches}
    if shared:
        raise UsageError(f"{min(shared)} is on both sides", fix="compare different runs")
    every = [launch for _, one, two in pairs for launch in (*one.launches, *two.launches)]
    check_launches((each.run, each.identity) for each in every)
    misfits = dict.fromkeys(each for _, one, two in pairs for each in _misfits(one.launches, two.launches))
    findings = tuple(
        msgspec.structs.replace(each, severity="warn", forced=True) if each.code in codes else each for each in misfits
    )
    points = tuple(compare_point(one, two, margin, fail_below, settings) for settings, one, two in pairs)
    return Compared(
        first=first.name,
        second=second.name,
        margin=margin,
        fail_below=fail_below,
        points=() if _is_refused(findings) else points,
        references=(),
        differences=_differences(pairs),
        demonstration=_demonstration(every),
        findings=findings,
        missing=(*_missing("A", first), *_missing("B", second)),
    )


def compare_with_references(side: Side, margin: float, file: Path) -> Compared:
    """Every point of a side against its reference in a file; points without one are left out.

    Raises:
        UsageError: the file is not valid, or has no reference for any point; two runs are one launch.
    """
    references = read_references(file)
    chosen = [
        (each, own, settings)
        for (_gpus, settings), each in side.points.items()
        if (own := reference_for(each.launches[0], references, file))
    ]
    if not chosen:
        raise none_fits(next(iter(side.points.values())).launches[0], references, file)
    launches = [launch for point, *_ in chosen for launch in point.launches]
    check_launches((each.run, each.identity) for each in launches)
    findings = tuple(
        dict.fromkeys(finding for point, *_ in chosen for finding in _repeats("A", beside_each_other(point.launches)))
    )
    return Compared(
        first=side.name,
        second="",
        margin=margin,
        fail_below=None,
        points=(),
        references=() if findings else tuple(against(point, own, file, settings) for point, own, settings in chosen),
        differences=(),
        demonstration=_demonstration(launches),
        findings=findings,
        missing=tuple(_missing("A", side, [each for each in references if is_near(each, launches[0])], launches[0])),
    )


def _missing(
    name: str, side: Side, references: Sequence[Reference] = (), beside: MeasuredLaunch | None = None
) -> Iterator[str]:
    """What must not be taken for compared; ``references``: what alone matters ``beside`` a launch, those that may be of
    it.
    """
    for (gpus, settings), wanted in side.missing.items():
        shared_by = beside.gpus if beside and side.strong else None
        if beside is None or any(may_fit(each, gpus, settings, beside.options, shared_by) for each in references):
            where = point_text(gpus, settings, " with ")
            yield f"{where}: {name} has 0 of {counted(wanted, 'launch')} proven, and is not compared"


def exit_of(compared: Compared) -> Exit:
    """3 where the sides cannot be compared, 7 where something is below its limit, 9 where that is unknown."""
    if _is_refused(compared.findings):
        return Exit.REFUSED
    judgements = {point.judgement for point in compared.points} | {each.judgement for each in compared.references}
    if "below" in judgements:
        return Exit.BELOW_REFERENCE
    is_open = "cannot tell" in judgements or (compared.missing and compared.has_limit)
    return Exit.UNKNOWN if is_open else Exit.GOOD


def _is_refused(findings: Iterable[Finding]) -> bool:
    return any(finding.severity == "refuse" for finding in findings)


def _misfits(first: Sequence[MeasuredLaunch], second: Sequence[MeasuredLaunch]) -> Iterator[Finding]:
    """Why two sides cannot be compared. Launches of a side must be repeats of each other."""
    every = beside_each_other([*first, *second])
    yield from _repeats("A", every[: len(first)])
    yield from _repeats("B", every[len(first) :])
    for fact, *values in differences("compare", first, second):
        one, two = (" and ".join(each) for each in values)
        what = f"{fact.words}: A has {one}, B has {two}"
        yield Finding(fact.code, "refuse", what, "compare runs that are equal in it")


def _repeats(name: str, side: Sequence[MeasuredLaunch]) -> Iterator[Finding]:
    """Why launches of a side are no repeats: one program with one code, image and environment."""
    first, *others = side
    for other in others:
        if fact := first_difference("repeats", first, other):
            another = fact.with_names((first, other))
            what = f"launches of {name} are no repeats: {other.run} has another {another} than {first.run}"
            fix = "give launches of one and the same job, as `rerun` or `scale --repeats` make them"
            yield Finding(_REPEATS, "refuse", what, fix)
            return


def _pairs(first: Side, second: Side) -> list[tuple[Setting, PointLaunches, PointLaunches]]:
    if len(first.points) == len(second.points) == 1:
        ((key, one),), ((other_key, two),) = first.points.items(), second.points.items()
        is_left_over = (first.missing or second.missing) and key[1] and other_key[1]
        if key == other_key or not is_left_over:
            return [(key[1] if key == other_key else (), one, two)]
    common = [key for key in first.points if key in second.points]
    if not common:
        raise UsageError(
            f"A and B have no measured point in common: A has {_points_of(first)}; B has {_points_of(second)}",
            fix="compare sides with equal sizes and settings",
        )
    return [(key[1], first.points[key], second.points[key]) for key in common]


def _points_of(side: Side) -> str:
    """``1 GPU, 16 GPUs with batch-size=128``; of many the first."""
    named = [point_text(gpus, own, " with ") for gpus, own in side.points]
    return first_of(named, _MOST_POINTS)


def _differences(pairs: Sequence[tuple[Setting, PointLaunches, PointLaunches]]) -> tuple[str, ...]:
    keys: list[str] = []
    for one, two in ((one.launches[0], two.launches[0]) for _, one, two in pairs):
        keys += [f"{each.area} {each.key}" for each in plan_differences(one.plan, two.plan)]
        keys += [f"code {key}" for key in {**one.code, **two.code} if one.code.get(key) != two.code.get(key)]
        keys += [
            fact.with_names((one, two)) for fact in unlike("repeats", (one, two)) if fact.names and fact.key != "setup"
        ]
    return tuple(key for key in dict.fromkeys(keys) if key != _NOT_TELLING)


def _demonstration(launches: Sequence[MeasuredLaunch]) -> str:
    return next((launch.figure.demonstration for launch in launches if launch.figure.demonstration), "")
