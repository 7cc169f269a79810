"""Figures against the user's references: ``references.yaml``. The project ships none: it has proven none yet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date
from pathlib import Path

from runner.core import ownership, paths, strict_yaml
from runner.core.errors import UsageError
from runner.core.text import gpus_text
from runner.figures.compare.launches import MeasuredLaunch, PointLaunches, in_order
from runner.model.expectation import AgainstReference, Reference, References
from runner.model.figure import unproven_doubts
from runner.model.study import Setting
from runner.planning.options import is_given
from runner.statistics.launches import LEAST_LAUNCHES, mean_rate

_NOT = ("false", "0", "no", "off")  # an option's words for it; a flag stands without one


def default_file() -> Path:
    """``references.yaml`` beside the user's configuration. Raises UsageError, RefusedError: another user could exchange
    it, as where RUNNER_CONFIG is in a directory of all.
    """
    file = paths.config_file().with_name("references.yaml")
    if whose := ownership.exchangeable_by(file, new=True, used=True):
        raise UsageError(f"this file is {whose}: references may be theirs", where=str(file), fix="--reference FILE")
    return paths.check_settings(file)  # again: it may come and go


def read_references(path: Path) -> tuple[Reference, ...]:
    """The references in a file.

    Raises:
        UsageError: it is missing or not valid; says file:line and key.
    """
    references = strict_yaml.load(path, References).references
    for each in references:
        try:
            date.fromisoformat(each.date)
        except ValueError:
            raise UsageError(f"there is no day {each.date}", where=str(path), fix="date: YYYY-MM-DD") from None
    return references


def reference_for(launch: MeasuredLaunch, references: Sequence[Reference], file: Path) -> Reference | None:
    """The reference of a launch's site, recipe, GPUs, unit and options; of several the one that names most options.

    Raises:
        UsageError: several fit equally.
    """
    fitting = [
        each
        for each in references
        if is_near(each, launch)
        and each.gpus == launch.gpus
        and each.unit.partition("/")[0] == launch.figure.unit
        # A reference is one of training, unless it names the arm.
        and (launch.plan.arms[-1] == "full" or "arms" in each.options)
        and _fits(each.options, launch.options)
    ]
    most = max((len(each.options) for each in fitting), default=0)
    best = [each for each in fitting if len(each.options) == most]
    if len(best) > 1:
        raise UsageError(
            f"{len(best)} references fit {_what(launch)}",
            where=str(file),
            fix="name options in them that tell them apart",
        )
    return best[0] if best else None


def none_fits(launch: MeasuredLaunch, references: Sequence[Reference], file: Path) -> UsageError:
    """What is there instead: of the same recipe and size, or else of the same site."""
    site, arm = launch.plan.site, launch.plan.arms[-1]
    near = [each for each in references if is_near(each, launch) and each.gpus == launch.gpus]
    named = sorted({f"{each.recipe} on {gpus_text(each.gpus)}" for each in references if each.site == site})
    if near and arm != "full":
        also = f" with a figure of the arm {arm}: a reference is one of training, unless its options name arms"
    elif near:
        wanted = sorted({", ".join((each.unit, *_named(each.options))) for each in near})
        also = f" with figures in {launch.figure.unit}/s and its options; for these it has only {'; '.join(wanted)}"
    else:
        also = f"; of this site it has {', '.join(named)}" if named else f"; it has none of site {site}"
    fix = "add one, with its source and date"
    return UsageError(f"no reference fits {_what(launch)}{also}", where=str(file), fix=fix)


def is_near(each: Reference, launch: MeasuredLaunch) -> bool:
    """Whether it is of the launch's site and recipe."""
    return (each.site, each.recipe) == (launch.plan.site, launch.plan.recipe)


def _what(launch: MeasuredLaunch) -> str:
    return f"recipe {launch.plan.recipe} on {gpus_text(launch.gpus)} of site {launch.plan.site}"


def _named(options: Mapping[str, str | int | float | bool]) -> list[str]:
    return [f"{name}={_written(value)}" for name, value in options.items()]


def _fits(wanted: Mapping[str, str | int | float | bool], options: Mapping[str, str]) -> bool:
    return all(
        (options.get(name, "no").lower() not in _NOT) == value
        if isinstance(value, bool)
        else is_given(options.get(name), str(value))
        for name, value in wanted.items()
    )


def may_fit(
    each: Reference, gpus: int, settings: Setting, options: Mapping[str, str], shared_by: int | None = None
) -> bool:
    """Whether it may be one of a point with these settings, of a study another run of which has these options.
    ``shared_by``: so many GPUs of that run share a whole batch, which any option may hold: here each has its share.
    """
    known = {**options, **dict(settings)}
    whole = {name: int(own) * (shared_by or 0) for name, own in options.items() if own.isdecimal()}
    whole |= {name: int(own) for name, own in settings if own.isdecimal()}
    shares = [{name: f"{batch // gpus}"} for name, batch in whole.items()] if shared_by and whole else [{}]
    return each.gpus == gpus and any(_fits(each.options, {**known, **share}) for share in shares)


def _written(value: str | float | bool) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def against(point: PointLaunches, reference: Reference, file: Path, settings: Setting = ()) -> AgainstReference:
    """Launches of one job, with these settings in its study, against their reference. Pure.

    From 3 launches on, the interval is Student's of the mean of their logarithms; of fewer it is the first one's within
    its run, which says nothing of the next launch.
    """
    ordered = in_order(point.launches)
    share = 1.0 / ordered[0].gpus if reference.unit.endswith("/GPU") else 1.0
    mean = mean_rate([launch.figure.value * share for launch in ordered])
    own, of_launches = ordered[0].figure.interval, False
    interval = None if own is None or len(ordered) > 1 else (own[0] * share, own[1] * share)
    if len(ordered) >= LEAST_LAUNCHES and mean.low is not None and mean.high is not None:
        interval, of_launches = (mean.low, mean.high), True
    low, high = interval if interval is not None else (mean.value, mean.value)
    at_least = reference.value * (1.0 + reference.lower)
    at_most = None if reference.upper is None else reference.value * (1.0 + reference.upper)
    return AgainstReference(
        runs=tuple(launch.run for launch in ordered),
        gpus=ordered[0].gpus,
        value=reference.value,
        unit=reference.unit,
        at_least=at_least,
        at_most=at_most,
        source=reference.source,
        date=reference.date,
        file=str(file),
        figure=mean.value,
        low=None if interval is None else low,
        high=None if interval is None else high,
        interval_of="none" if interval is None else "launches" if of_launches else "this run",
        judgement="below" if high < at_least else "good" if low >= at_least else "cannot tell",
        above=at_most is not None and low > at_most,
        doubts=(*point.doubts, *unproven_doubts(point.not_proven)),
        settings=tuple(f"{key}={value}" for key, value in settings),
    )
