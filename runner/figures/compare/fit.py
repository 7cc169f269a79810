"""What cannot be compared with what, each with the code that overrides it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from runner.core.errors import UsageError
from runner.core.text import instead
from runner.figures.compare.launches import MeasuredLaunch
from runner.jobs.sameness import FIX, copy_among, differences, facts_for, first_difference
from runner.model.plan import Finding

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
