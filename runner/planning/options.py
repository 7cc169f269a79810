"""A recipe's options into program arguments, and the options of a program's arguments."""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Mapping, Sequence

from runner.core.errors import UsageError
from runner.core.text import instead
from runner.model.request import ARMS, Option, Recipe, RunArm, written

_NO_OPTIONS = "an option of a program stands behind it; `recipe new DIR -- PROGRAM` makes options of them for --set"


def arguments(recipe: Recipe, site: Mapping[str, Option], user: Iterable[tuple[str, str]]) -> tuple[str, ...]:
    """``--key value`` arguments in the recipe's order; user wins over site, site over the recipe's defaults.

    A true option becomes ``--key``, a false or null one is left out. A value that starts with a dash is passed as
    ``--key=value``, so that no parser takes it for an option. Raises UsageError: as ``values``.
    """
    result: list[str] = []
    for key, value in values(recipe, site, user).items():
        if value is True:
            result.append(f"--{key}")
        elif value is not False and value is not None:
            text = str(value)
            result += [f"--{key}={text}"] if text.startswith("-") else [f"--{key}", text]
    return tuple(result)


def values(recipe: Recipe, site: Mapping[str, Option], user: Iterable[tuple[str, str]]) -> dict[str, Option]:
    """Each option's value, in the recipe's order; user wins over site, site over the recipe's defaults. Raises
    UsageError: a key that the recipe does not have (with the nearest that it has), a value that is none of the option's
    choices, one that does not go with another option's, or a NUL.
    """
    defaults = recipe.options
    chosen: dict[str, Option] = dict(defaults)
    for origin, pairs in (("the site's options", site.items()), ("--set", user)):
        for key, value in pairs:
            if key not in defaults:
                known = f"options: {', '.join(sorted(defaults))}" if defaults else _NO_OPTIONS
                raise UsageError(f"the recipe has no option {key!r}", where=origin, fix=instead(key, defaults, known))
            chosen[key] = _typed(key, value, defaults[key])
            allowed = [str(choice) for choice in recipe.choices.get(key, ())]
            if allowed and value is not None and str(value) not in allowed:
                fix = instead(str(value), allowed, f"one of: {', '.join(allowed)}")
                raise UsageError(f"{str(value)!r} is no choice of the option {key!r}", where=origin, fix=fix)
    _within_limits(recipe, chosen)
    return chosen


def _within_limits(recipe: Recipe, chosen: Mapping[str, Option]) -> None:
    """Refuse values that the program refuses together (``limits`` of the recipe)."""
    for key, by_value in recipe.limits.items():
        set_to = written(chosen.get(key))
        for other, allowed in by_value.get(set_to, {}).items():
            value = chosen.get(other)
            if value is not None and written(value) not in map(written, allowed):
                left = " or ".join(f"{other}={written(each)}" for each in allowed)
                what = f"{other}={written(value)} does not go with {key}={set_to}"
                fix = f"leave one of them out; with {key}={set_to} goes {left}"
                raise UsageError(what, where=f"the options of the recipe {recipe.name}", fix=fix)


def _typed(key: str, value: Option, default: Option) -> Option:
    """A value from the command line in the type of the recipe's default."""
    if not isinstance(value, str):
        return value
    if "\0" in value:
        raise UsageError("a NUL character cannot be passed to a program", where=f"--set {key}")
    if isinstance(default, bool):
        if value not in ("true", "false"):
            raise UsageError(f"{value!r} is neither true nor false", where=f"--set {key}")
        return value == "true"
    if isinstance(default, int | float):
        try:
            float(value)
        except ValueError:
            raise UsageError(f"{value!r} is not a number", where=f"--set {key}") from None
    return value


def tells_runs_apart(name: str, where: str) -> UsageError:
    """That no secret can: where values differ between runs, the names of directories, tables and reports have them."""
    what = f"names of runs and reports show the values of {name}, and they look secret"
    fix = "give a secret to all runs alike, by --env NAME; call what is none otherwise"
    return UsageError(what, where=where, fix=fix)


def samples_per_step(program: Sequence[str], option: str) -> int | None:
    """The number behind ``--option``; the last one counts, as in the program. None where there is none."""
    found = value_of(program, option)
    return int(found) if found is not None and re.fullmatch(r"[1-9]\d{0,8}", found, re.ASCII) else None


def value_of(program: Sequence[str], option: str) -> str | None:
    """The word behind ``--option``; the last one counts, as in the program. None where there is none."""
    found = None
    for word, following in zip(program, (*program[1:], ""), strict=True):
        name, equals, value = word.partition("=")
        if option and name == f"--{option}":
            found = value if equals else following
    return found


def options_of(program: Sequence[str]) -> dict[str, str]:
    """The long options of a command: ``--NAME VALUE`` and ``--NAME=VALUE``; a flag has an empty value."""
    options: dict[str, str] = {}
    for each, after in zip(program, (*program[1:], "--"), strict=False):
        name, equals, value = each.removeprefix("--").partition("=")
        if each.startswith("--") and name:
            options[name] = value if equals or after.startswith("--") else after
    return options


def is_given(given: str | None, wanted: str) -> bool:
    """Whether an option has a value: a flag without one is true, and false where it is missing; numbers by value."""
    if given == wanted:
        return True
    if given is None or given == "":
        return wanted.lower() == ("true" if given == "" else "false") or (given is None and wanted.lower() == "null")
    try:
        return float(given) == float(wanted)
    except ValueError:
        return wanted.lower() in ("true", "false") and given.lower() == wanted.lower()


def arms(program: Sequence[str], options: Container[str]) -> tuple[RunArm, ...]:
    """The arms behind ``--arms`` of a recipe that has this option; ``full`` alone where none are named."""
    words = ((value_of(program, "arms") if "arms" in options else None) or "").split(",")
    known: dict[str, RunArm] = {arm: arm for arm in ARMS}
    return tuple(known[word] for word in words if word in known) or ("full",)
