"""What a user names as a side of ``compare``: a run, or several with commas between them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from runner.core.errors import Exit, UsageError
from runner.core.text import first_of, gpus_text, instead
from runner.figures.compare.launches import MeasuredLaunch, compare_point, measured_launch
from runner.figures.compare.references import against, none_fits, read_references, reference_for
from runner.jobs.comparison import FIX, copy_among, differences, facts_for, first_difference, plan_differences
from runner.jobs.directory import Run
from runner.jobs.lookup import find
from runner.model.expectation import Compared
from runner.model.plan import Finding


def runs_of(text: str) -> tuple[Run, ...]:
    """The runs that a user means: each an id, a name, the beginning of one, a job's id or a directory.

    Raises:
        UsageError: one of them is none, or is there twice.
    """
    return runs_named([text] if Path(text).exists() else [name for name in text.split(",") if name])


def runs_named(names: Sequence[str]) -> tuple[Run, ...]:
    """The runs of these names, one each.

    Raises:
        UsageError: as ``runs_of``.
    """
    if not names:
        raise UsageError("no run is named", fix="give a run, or several with commas between them")
    runs = tuple(find(name) for name in names)
    ids = [run.run_id for run in runs]
    twice = next((run_id for run_id in ids if ids.count(run_id) > 1), "")
    if twice:
        raise UsageError(f"{twice} is named twice", fix="name each run once")
    return runs


def side_of(text: str) -> Side:
    """The side of these runs.

    Raises:
        UsageError: as ``runs_of``. NotProvenError: one is not measured.
    """
    return side_of_runs(text, runs_of(text))


def side_of_runs(name: str, runs: Sequence[Run]) -> Side:
    """The side of these runs, one at least.

    Raises:
        NotProvenError: one is not measured.
    """
    launches = tuple(map(measured_launch, runs))
    return Side(name, {(launches[0].gpus, ()): PointLaunches(launches)})


_REPEATS = "not-repeats"
CODES = frozenset((*(fact.code for fact in facts_for("compare")), _REPEATS))


def check_codes(force: Iterable[str]) -> frozenset[str]:
    """The codes that ``--force`` names.

    Raises:
        UsageError: there is no such code.
    """
    codes = frozenset(force)
    for code in sorted(codes - CODES):
        raise UsageError(
            f"compare has no code {code!r}",
            where="--force",
            fix=instead(code, CODES, f"codes: {', '.join(sorted(CODES))}"),
        )
    return codes


def misfits(
    first: Sequence[MeasuredLaunch], second: Sequence[MeasuredLaunch], force: frozenset[str]
) -> tuple[Finding, ...]:
    """Why two sides cannot be compared; those whose code is in ``force`` only warn.

    Launches of a side must be repeats of each other: one program with one code, image and environment.
    """
    found = [*_repeats("A", first), *_repeats("B", second)]
    for fact, *values in differences("compare", first, second):
        one, two = (" and ".join(each) for each in values)
        found.append(
            _finding(fact.code, f"{fact.words}: A has {one}, B has {two}", "compare runs that are equal in it")
        )
    return tuple(_forced(each, force) for each in found)


def not_repeats(side: Sequence[MeasuredLaunch]) -> tuple[Finding, ...]:
    """Why launches that are held against a reference are no repeats of each other."""
    return tuple(_repeats("A", side))


def check_different(launches: Iterable[MeasuredLaunch]) -> None:
    """A launch counts once, also where its run directory was copied.

    Raises:
        UsageError: the first ranks of two began in one job step at the same instant.
    """
    twice = copy_among((each.run, each.identity) for each in launches)
    if twice is not None:
        raise UsageError(f"{' and '.join(twice)} are one launch: the same ranks began at the same instant", fix=FIX)


def _repeats(name: str, side: Sequence[MeasuredLaunch]) -> Iterator[Finding]:
    first, *others = side
    for other in others:
        if fact := first_difference("repeats", first, other):
            what = f"launches of {name} are no repeats: {other.run} has another {fact.words} than {first.run}"
            fix = "give launches of one and the same job, as `rerun` or `scale --repeats` make them"
            yield _finding(_REPEATS, what, fix)
            return


def _finding(code: str, what: str, fix: str) -> Finding:
    return Finding(code, "refuse", what, fix)


def _forced(finding: Finding, force: frozenset[str]) -> Finding:
    if finding.code not in force:
        return finding
    return Finding(finding.code, "warn", finding.what, finding.fix, finding.who, forced=True)


# Of differences between plans those that say nothing about the figure.
_NOT_TELLING = frozenset(("plan job_name",))
_MOST_POINTS = 6  # of a side, in one sentence
Settings = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class PointLaunches:
    """The launches of one side at one point: ``not_proven``: how many further ones are not measured."""

    launches: tuple[MeasuredLaunch, ...]
    not_proven: int = 0


@dataclass(frozen=True)
class Side:
    """What a user named: a run or several, or a study with a point for each size and setting.

    Attributes:
        name: as typed. points: key of the point -> its launches, none empty.
    """

    name: str
    points: Mapping[tuple[int, Settings], PointLaunches]


def compare_sides(
    first: Side, second: Side, margin: float, *, fail_below: float | None = None, force: Iterable[str] = ()
) -> Compared:
    """B against A at every point that both have; where each has one point, these are compared with each other.

    Raises:
        UsageError: no such code, the sides share a run or a launch, or have no point in common.
    """
    codes = check_codes(force)
    pairs = _pairs(first, second)
    shared = {launch.run for _, one, two in pairs for launch in one.launches} & {
        launch.run for _, one, two in pairs for launch in two.launches
    }
    if shared:
        raise UsageError(f"{min(shared)} is on both sides", fix="compare different runs")
    check_different([launch for _, one, two in pairs for launch in (*one.launches, *two.launches)])
    findings = tuple(
        dict.fromkeys(found for _, one, two in pairs for found in misfits(one.launches, two.launches, codes))
    )
    every = [launch for _, one, two in pairs for launch in (*one.launches, *two.launches)]
    points = tuple(
        compare_point(
            one.launches,
            two.launches,
            margin,
            fail_below=fail_below,
            settings=tuple(f"{name}={value}" for name, value in settings),
            not_proven=(one.not_proven, two.not_proven),
        )
        for settings, one, two in pairs
    )
    return Compared(
        first=first.name,
        second=second.name,
        margin=margin,
        fail_below=fail_below,
        points=() if any(found.severity == "refuse" for found in findings) else points,
        references=(),
        differences=_differences(pairs),
        demonstration=_demonstration(every),
        findings=findings,
    )


def compare_with_references(side: Side, margin: float, file: Path) -> Compared:
    """Every point of a side against its reference in a file; points without one are left out.

    Raises:
        UsageError: the file is not valid, or has no reference for any point; two runs are one launch.
    """
    references = read_references(file)
    every = [point.launches for point in side.points.values()]
    chosen = [(launches, found) for launches in every if (found := reference_for(launches[0], references, file))]
    if not chosen:
        raise none_fits(every[0][0], references, file)
    points = [launches for launches, _ in chosen]
    check_different([launch for launches in points for launch in launches])
    findings = tuple(dict.fromkeys(found for launches in points for found in not_repeats(launches)))
    refused = any(found.severity == "refuse" for found in findings)
    return Compared(
        first=side.name,
        second="",
        margin=margin,
        fail_below=None,
        points=(),
        references=() if refused else tuple(against(launches, found, file) for launches, found in chosen),
        differences=(),
        demonstration=_demonstration([launch for launches in points for launch in launches]),
        findings=findings,
    )


def exit_of(compared: Compared) -> Exit:
    """3 where the sides cannot be compared, 7 where something is below its limit, 9 where that is unknown."""
    if any(found.severity == "refuse" for found in compared.findings):
        return Exit.REFUSED
    judgements = {point.judgement for point in compared.points} | {each.judgement for each in compared.references}
    if "below" in judgements:
        return Exit.BELOW_REFERENCE
    return Exit.UNKNOWN if "cannot tell" in judgements else Exit.GOOD


def _pairs(first: Side, second: Side) -> list[tuple[Settings, PointLaunches, PointLaunches]]:
    if len(first.points) == len(second.points) == 1:
        ((_, settings), one), two = next(iter(first.points.items())), next(iter(second.points.values()))
        same = next(iter(first.points)) == next(iter(second.points))
        return [(settings if same else (), one, two)]
    common = [key for key in first.points if key in second.points]
    if not common:
        raise UsageError(
            f"A and B have no measured point in common: A has {_points_of(first)}; B has {_points_of(second)}",
            fix="compare sides with equal sizes and settings",
        )
    return [(key[1], first.points[key], second.points[key]) for key in common]


def _points_of(side: Side) -> str:
    """``1 GPU, 16 GPUs with batch-size=128``; of many the first."""
    named = [
        f"{gpus_text(gpus)}{' with ' if settings else ''}{', '.join(f'{name}={value}' for name, value in settings)}"
        for gpus, settings in side.points
    ]
    return first_of(named, _MOST_POINTS)


def _differences(pairs: Sequence[tuple[Settings, PointLaunches, PointLaunches]]) -> tuple[str, ...]:
    keys: dict[str, None] = {}
    for _, one, two in pairs:
        for each in plan_differences(one.launches[0].plan, two.launches[0].plan):
            keys.setdefault(f"{each.area} {each.key}")
        codes = one.launches[0].code, two.launches[0].code
        for key in {**codes[0], **codes[1]}:
            if codes[0].get(key) != codes[1].get(key):
                keys.setdefault(f"code {key}")
    return tuple(key for key in keys if key not in _NOT_TELLING)


def _demonstration(launches: Sequence[MeasuredLaunch]) -> str:
    return next((launch.figure.demonstration for launch in launches if launch.figure.demonstration), "")
