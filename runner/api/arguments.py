"""Values from Python as the options that the command line has: read, checked, and written as its words."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, SupportsIndex, TypeVar

from runner.core.errors import UsageError
from runner.model.request import parse_duration_s, parse_mount

T = TypeVar("T")


def words_of(command: Sequence[str]) -> tuple[str, ...]:
    """The words of a command.

    Raises:
        UsageError: it is one text, or has something else than texts.
    """
    if isinstance(command, str):
        fix = f'a list of words, which no shell reads: command=["python", ...], not {command!r}'
        raise UsageError("the command is one text", where="command", fix=fix)
    try:
        return tuple(path_of(word) for word in command)
    except TypeError as error:
        raise UsageError(f"the command cannot be read: {error}", where="command", fix="a list of texts") from None


def values_of(verb: str, options: Mapping[str, Any], names: Mapping[str, object]) -> dict[str, Any]:
    """The options of a verb as ``make_options`` takes them.

    Args:
        names: those that there are.

    Raises:
        UsageError: one is unknown, or wrong.
    """
    from runner.core.text import instead

    given: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
    for name in given:
        if name not in names:
            raise UsageError(f"{verb} has no option {name!r}", where=name, fix=instead(name, names, ", ".join(names)))
    values: dict[str, Any] = {"site": os.environ.get("RUNNER_SITE") or None}
    for name, value in given.items():
        to, read = _READ.get(name, (name, _as_it_is))
        values[to] = given_as(name, read, value)
    return values


def given_as(name: str, read: Callable[[Any], T], value: object) -> T:
    """A value as ``read`` has it.

    Raises:
        UsageError: ``read`` cannot read it.
    """
    try:
        return read(value)
    except (ValueError, TypeError, AttributeError) as error:
        # Not the value: it may hold a secret.
        what = f"the option {name!r} cannot be read: {error}"
        raise UsageError(what, where=name, fix="docs/python.md shows its form") from None


def number_of(value: object) -> float:
    """A number.

    Raises:
        TypeError: it is none.
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"it is {type(value).__name__}, and must be a number")
    return value


def count_of(value: object) -> int:
    """A number of things, from one on.

    Raises:
        TypeError, ValueError: it is none.
    """
    if isinstance(value, bool) or not isinstance(value, SupportsIndex):
        raise TypeError(f"it is {type(value).__name__}, and must be a whole number")
    count = value.__index__()
    if count < 1:
        raise ValueError("it must be one or more")
    return count


def _as_it_is(value: T) -> T:
    return value


def pairs_of(values: Mapping[str, object]) -> tuple[tuple[str, str], ...]:
    """As the command line writes them: true and false as in YAML, several values with commas between them."""
    return tuple((_named(name), _text(value)) for name, value in values.items())


def _named(name: object) -> str:
    if not isinstance(name, str):
        raise TypeError(f"a name is {type(name).__name__}, and must be a text")
    return name


def _text(value: object) -> str:
    if isinstance(value, list | tuple):
        return ",".join(map(_text, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


def path_of(value: str | os.PathLike[str]) -> str:
    """A path, or a text, as a text.

    Raises:
        TypeError: it is neither.
    """
    text = os.fspath(value) if isinstance(value, os.PathLike) else value
    if not isinstance(text, str):
        raise TypeError(f"it is {type(text).__name__}, and must be a text or a path")
    return text


def place_of(value: str | os.PathLike[str]) -> Path:
    """A path.

    Raises:
        ValueError, TypeError: it is none.
    """
    text = path_of(value)
    if "\0" in text:
        raise ValueError("it has a NUL character")
    return Path(text)


def _seconds(limit: str | int) -> int:
    if not isinstance(limit, int):
        return parse_duration_s(limit)
    if limit <= 0:
        raise ValueError("a time limit of zero, or less")
    return limit


def texts_of(values: Sequence[str]) -> tuple[str, ...]:
    """A list of texts.

    Raises:
        TypeError, ValueError: it is none.
    """
    if isinstance(values, str):
        raise ValueError("it is one text, and must be a list")
    return tuple(map(path_of, values))


# Option -> the name that ``make_options`` has for it, and how its value is read.
_READ: Mapping[str, tuple[str, Callable[[Any], Any]]] = {
    "site": ("site", path_of),
    "recipe": ("recipe", path_of),
    "hostfile": ("hostfile", lambda path: str(place_of(path))),
    "image": ("image", path_of),
    "runs": ("runs", place_of),
    "mount": ("mounts", lambda texts: tuple(map(parse_mount, texts_of(texts)))),
    "env": ("env", lambda variables: tuple(variables.items())),
    "set": ("options", pairs_of),
    "scheduler_option": ("scheduler_options", pairs_of),
    "force": ("force", texts_of),
    "time": ("walltime_s", _seconds),
    "name": ("job_name", str),
}


def arguments_of(options: Mapping[str, object]) -> Iterator[str]:
    """The words of a command line that has these options, which ``values_of`` has read."""
    for name, value in options.items():
        flag = f"--{name.replace('_', '-')}"
        if value is True:
            yield flag
        elif value is not None and value is not False:
            yield from (f"{flag}={text}" for text in _texts(name, value))


def _texts(name: str, value: Any) -> Iterator[str]:
    """What stands behind an option: one text, or one for each time that it is given."""
    if name == "env":
        yield from (f"-{key}" if each is None else f"{key}={each}" for key, each in value.items())
    elif isinstance(value, Mapping):
        yield from (f"{key}={each}" for key, each in pairs_of(value))
    elif isinstance(value, list | tuple):
        yield from value
    elif name == "time" and isinstance(value, int):
        yield f"{value // 60}:{value % 60:02d}"
    else:
        yield path_of(value) if isinstance(value, os.PathLike) else str(value)
