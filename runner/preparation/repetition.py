"""The command line of a run that repeats another one: the recorded options, and what the user changes. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from runner.core.errors import UsageError
from runner.images import reference as references
from runner.model.plan import Plan
from runner.model.runtimes import NATIVE, RUNTIMES

# Options that are given several times: what says that a later one replaces an earlier one.
_KEYS: dict[str, Callable[[str], str]] = {
    "env": lambda text: text.lstrip("-").partition("=")[0],
    "options": lambda text: text.partition("=")[0],
    "scheduler_options": lambda text: text.partition("=")[0],
    "mounts": lambda text: ":".join(text.split(":")[1:2]),
}

Values = Mapping[str, Any]  # option's name -> its text, True for a flag, a list where it may be given several times


def repeated(recorded: Values, changes: Values, *, without: Collection[str], image: str, site: str) -> dict[str, Any]:
    """The options of the new run.

    Args:
        changes: as the user gives them; the arguments of the program replace the recorded ones.
        without: names of recorded options that are left out.
        image: the image that ran, for where no other one or an environment is requested. site: the same.

    Raises:
        UsageError: the arguments are options, and the recorded run has a program of its own.
    """
    values = {name: value for name, value in recorded.items() if name not in without}
    old, new = values.get("arguments", ()), changes.get("arguments", ())
    if "recipe" not in {**values, **changes} and old and not old[0].startswith("-") and new and new[0].startswith("-"):
        raise UsageError(
            f"{new[0]} is no program",
            where="the arguments after --",
            fix=f"give the whole program again, as `-- {old[0]} ...`; without it the recorded one is run",
        )
    for name, value in changes.items():
        if name in _KEYS:
            values[name] = [*_not_replaced(name, values.get(name, ()), value), *value]
        elif isinstance(value, list):
            values[name] = [*dict.fromkeys((*values.get(name, ()), *value))]
        elif name != "arguments" or value:
            values[name] = value
    if "site" not in values and "hosts" not in values and "hostfile" not in values and site:
        values["site"] = site
    if image and "image" not in changes and "image" not in without and not _has_no_image(values):
        values["image"] = image
    return values


def image_of(plan: Plan) -> str:
    """The image that ran, as an option names it: by its digest, or the file; empty for none."""
    if not RUNTIMES[plan.runtime].is_container:
        return ""
    return plan.image.path if references.is_path(plan.image.reference) else plan.image.pinned


def _has_no_image(values: Values) -> bool:
    return "env_name" in values or values.get("runtime") == NATIVE


def _not_replaced(name: str, recorded: Collection[str], changes: Collection[str]) -> list[str]:
    key = _KEYS[name]
    replaced = [key(each) for each in changes]
    return [each for each in recorded if key(each) not in replaced]
