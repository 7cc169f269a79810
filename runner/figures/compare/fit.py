"""What cannot be compared with what: rules over the plans of two launches, each with the code that overrides it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from runner.core.errors import UsageError
from runner.core.text import instead
from runner.figures.compare.launches import MeasuredLaunch
from runner.jobs.copies import FIX, copy_among
from runner.model.plan import Finding

_NONE = "none"
FIGURE_OPTIONS = ("model", "precision", "image-size")  # of programs: what decides a figure


def _option(name: str) -> Callable[[MeasuredLaunch], str]:
    return lambda launch: launch.options.get(name, _NONE)


# code -> what it is, and its value of a launch.
_RULES: dict[str, tuple[str, Callable[[MeasuredLaunch], str]]] = {
    "other-recipe": ("recipe", lambda launch: launch.plan.recipe),
    "other-model": ("model", _option("model")),
    "other-precision": ("precision", _option("precision")),
    "other-batch": ("batch of a GPU", lambda launch: str(launch.batch)),
    "other-image-size": ("image size", _option("image-size")),
    "other-gpus": ("number of GPUs", lambda launch: str(launch.gpus)),
    "other-placement": ("ranks on each node", lambda launch: ",".join(map(str, launch.plan.tasks_per_node))),
    "other-device": ("device", lambda launch: f"{launch.plan.device} {launch.plan.gpu_type}".strip()),
    "other-site": ("site", lambda launch: launch.plan.site),
    "other-arm": ("arm of the figure", lambda launch: launch.plan.arms[-1]),
    "other-unit": ("unit of the figure", lambda launch: launch.figure.unit),
    "other-proof": (
        "synchronisation",
        lambda launch: "not-examined" if launch.figure.has("not-examined") else "proven",
    ),
    "other-claim": ("claim", lambda launch: "demonstration" if launch.figure.demonstration else "performance"),
}
_REPEATS = "not-repeats"
_CODE = ("program", "commit", "changes")  # of a launch's code, what repeats share
CODES = frozenset((*_RULES, _REPEATS))


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
    for code, (what, value) in _RULES.items():
        values = [sorted(set(map(value, side))) for side in (first, second)]
        if values[0] != values[1]:
            one, two = (" and ".join(each) for each in values)
            found.append(_finding(code, f"{what}: A has {one}, B has {two}", "compare runs that are equal in it"))
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
        for what in ("program", "image", "env", "unset", "runtime", "tasks_per_node", "site"):
            if getattr(first.plan, what) != getattr(other.plan, what):
                yield _repeat(name, first, other, what)
                return
        if any(first.code.get(what) != other.code.get(what) for what in _CODE):
            yield _repeat(name, first, other, "code")
            return


def _repeat(name: str, first: MeasuredLaunch, other: MeasuredLaunch, what: str) -> Finding:
    return _finding(
        _REPEATS,
        f"launches of {name} are no repeats: {other.run} has another {what} than {first.run}",
        "give launches of one and the same job, as `rerun` or `scale --repeats` make them",
    )


def _finding(code: str, what: str, fix: str) -> Finding:
    return Finding(code, "refuse", what, fix)


def _forced(finding: Finding, force: frozenset[str]) -> Finding:
    if finding.code not in force:
        return finding
    return Finding(finding.code, "warn", finding.what, finding.fix, finding.who, forced=True)
