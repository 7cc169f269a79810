"""From a question to launches: sizes x arms x settings x repeats, in an order that cancels drift. Pure.

Launches of one repeat run through all points, forward and backward in turn (two points A and B give ABBAABBAABBA), so
that neither a linear drift nor a slow first launch goes with a point.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import chain, count, product
from typing import get_args

import msgspec

from runner.core.errors import UsageError
from runner.core.hide import first_secret
from runner.core.text import gpus_text, instead
from runner.model.study import Arm, Launch, Setting, Study
from runner.planning.options import tells_runs_apart

ARMS: tuple[Arm, ...] = get_args(Arm)
# What one process can alternate between, in the order of its windows; `full` is its main one.
_OF_ONE_PROCESS: tuple[Arm, ...] = ("uncoupled", "coordination", "full")
_ALONE: tuple[Arm, ...] = ("solo", "solo-hooks")
_LONGEST_KEY = 120  # of a file name, with room for what is appended
_NOT_PLAIN = re.compile(r"[^A-Za-z0-9._=+-]")
_KEY = re.compile(r"g\d+-[A-Za-z0-9._=+-]+\Z", re.ASCII)


def parse_sizes(text: str) -> tuple[int, ...]:
    """``1,2,4,8,16`` as rising numbers. Raises UsageError: it is something else."""
    parts = text.split(",")
    if not all(re.fullmatch(r"[1-9]\d{0,6}", part, re.ASCII) for part in parts):
        raise UsageError(f"{text!r} is no list of sizes", where="--gpus", fix="write numbers of GPUs: --gpus 1,2,4,8")
    sizes = sorted({int(part) for part in parts})
    if len(sizes) != len(parts):
        raise UsageError(f"{text!r} names a size twice", where="--gpus", fix="--repeats N launches each size N times")
    return tuple(sizes)


def parse_arms(text: str) -> tuple[Arm, ...]:
    """``full,solo`` as arms, ``full`` always among them. Raises UsageError: one is unknown."""
    names = text.split(",")
    for name in names:
        if name not in ARMS:
            raise UsageError(f"no arm {name!r}", where="--arms", fix=instead(name, ARMS, f"arms: {', '.join(ARMS)}"))
    return tuple(arm for arm in ARMS if arm in names or arm == "full")


def parse_settings(options: Sequence[tuple[str, str]]) -> tuple[Setting, tuple[Setting, ...]]:
    """Options of the recipe, each with one value or several between commas.

    Returns:
        Those with one value, which all launches share; and every combination of the others' values.

    Raises:
        UsageError: a value is empty, named twice, or secret where there are several.
    """
    values: dict[str, list[str]] = {}
    for name, text in options:  # as of `submit`, a later one replaces an earlier one
        values[name] = text.split(",") if "," in text else [text]
        if len(set(values[name])) != len(values[name]) or (len(values[name]) > 1 and "" in values[name]):
            raise UsageError(
                f"{text!r}: a value is empty, or there twice", where=f"--set {name}", fix="write --set NAME=A,B"
            )
    shared = tuple((name, each[0]) for name, each in values.items() if len(each) == 1)
    varied = [[(name, value) for value in each] for name, each in values.items() if len(each) > 1]
    if name := first_secret(chain(*varied)):
        raise tells_runs_apart(name, f"--set {name}")
    return shared, tuple(product(*varied))


def launches(
    gpus: Sequence[int],
    arms: Collection[Arm],
    settings: Sequence[Setting],
    repeats: int,
    *,
    solo_places: Sequence[int] | None = None,
    solo_gpus: int | None = None,
) -> tuple[Launch, ...]:
    """All launches of a study, in their order.

    Args:
        settings: at least one, which may be empty.
        solo_places: where nodes are fixed: how many GPUs of each node the study has. Every repeat then has each of them
            alone, one of each node at a time; else there is one a repeat, wherever it comes to lie.
        solo_gpus: of each node in one repeat, and others in the next; None for all.
    """
    planned: dict[str, Launch] = {}
    for repeat in range(1, repeats + 1):
        points = []
        for setting in settings:
            points += [*_alone(arms, setting, repeat, solo_places, solo_gpus), *_together(gpus, arms, setting, repeat)]
        for point in reversed(points) if repeat % 2 == 0 else points:
            key = _key(point, planned)
            planned[key] = msgspec.structs.replace(point, key=key, place=len(planned))
    return tuple(planned.values())


def is_whole(study: Study) -> bool:
    """Whether it can be what was planned: each launch has a size, arms and settings of the study, and a key of its own
    that is a file name. Directories are made, and removed, by these keys.
    """
    points = {msgspec.structs.replace(each, key="", place=0) for each in study.launches}
    return (
        0 < len(study.launches) == len({each.key for each in study.launches}) == len(points)
        and all(_KEY.match(each.key) for each in study.launches)
        and all(each.gpus > 0 and (each.gpus in study.gpus or each.arm in _ALONE) for each in study.launches)
        and all({each.arm, *each.arms} <= {*study.arms} and each.settings in study.settings for each in study.launches)
        and all(_is_placed(each, study) for each in study.launches)
    )


def _is_placed(launch: Launch, study: Study) -> bool:
    """Whether it is one GPU alone where it has a place, and that place can be one of the study's."""
    if launch.arm in _ALONE and launch.gpus != 1:
        return False
    if launch.node is None or launch.device is None:
        return launch.node is launch.device
    places = range(max(study.gpus))
    is_one = launch.arm in _ALONE and study.way == "one-allocation"
    return is_one and launch.node in places and launch.device in places


def launch_options(launch: Launch, shared: Setting, whole_batch: str = "") -> Setting:
    """The recipe's options of a launch, as ``submit --set`` takes them.

    Args:
        whole_batch: the option that holds the whole batch, which its ranks share (``--strong``); empty for none.

    Raises:
        UsageError: the batch cannot be shared equally.
    """
    options = dict((*shared, *launch.settings))
    if whole_batch:
        text = options.get(whole_batch, "")
        if not re.fullmatch(r"[1-9]\d{0,8}", text, re.ASCII):
            what = f"{text!r} is no whole batch" if text else "the whole batch is not given"
            raise UsageError(what, where="--strong", fix=f"give it as --set {whole_batch}=N, a number of samples")
        if int(text) % launch.gpus:
            raise UsageError(
                f"a whole batch of {text} cannot be shared by {gpus_text(launch.gpus)} equally",
                where=f"--strong, --set {whole_batch}={text}",
                fix="give one that every size of --gpus divides",
            )
        options[whole_batch] = str(int(text) // launch.gpus)
    if launch.arms:
        options["arms"] = ",".join(launch.arms)
    if launch.arm == "solo-hooks":
        options["hooks-at-one"] = "true"
    return tuple(options.items())


def _together(gpus: Sequence[int], arms: Collection[Arm], setting: Setting, repeat: int) -> Iterator[Launch]:
    alternated = tuple(arm for arm in _OF_ONE_PROCESS if arm in arms)
    for size in gpus:
        inside = alternated if len(alternated) > 1 and size > 1 else ()
        yield Launch("", size, "full", repeat, 0, inside, setting)


def _alone(
    arms: Collection[Arm], setting: Setting, repeat: int, places: Sequence[int] | None, most: int | None
) -> Iterator[Launch]:
    own = [arm for arm in _ALONE if arm in arms]
    if places is None:
        yield from (Launch("", 1, arm, repeat, 0, (), setting) for arm in own)
        return
    counts = [min(most or has, has) for has in places]
    for turn in range(max(counts)):
        for arm in own if turn % 2 == 0 else own[::-1]:  # there and back between the arms
            for node, (has, own_turns) in enumerate(zip(places, counts, strict=True)):
                # Each repeat begins with other GPUs, and each node with another one.
                first = node + (repeat - 1) * (own_turns if own_turns < has else 1)
                if turn < own_turns:
                    yield Launch("", 1, arm, repeat, 0, (), setting, node, (first + turn) % has)


def turns(launches: Iterable[Launch]) -> tuple[tuple[Launch, ...], ...]:
    """The launches in their order, those together that run at one time: of one GPU alone, on different nodes."""
    together: list[list[Launch]] = []
    for each in launches:
        if (
            together
            and each.node is not None
            and all(
                other.node not in (None, each.node)
                and (other.arm, other.repeat, other.settings) == (each.arm, each.repeat, each.settings)
                for other in together[-1]
            )
        ):
            together[-1].append(each)
        else:
            together.append([each])
    return tuple(map(tuple, together))


def _key(launch: Launch, taken: Collection[str]) -> str:
    """``g0008-full-batch-size=128-r2``; with a number where another launch has that name already."""
    parts = [f"g{launch.gpus:04d}", launch.arm, *(f"{name}={value}" for name, value in launch.settings)]
    place = "" if launch.node is None else f"-n{launch.node:03d}d{launch.device}"
    name = f"{_NOT_PLAIN.sub('_', '-'.join(parts))[:_LONGEST_KEY]}{place}-r{launch.repeat}"
    return next(key for number in count(1) if (key := name if number == 1 else f"{name}.{number}") not in taken)
