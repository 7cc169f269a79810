"""Values of options that several verbs share, parsed strictly."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from typing import TYPE_CHECKING

import click

from runner.model.request import Mount, parse_duration_s, parse_mount

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem


def by_shell(kind: str) -> Callable[[click.Context, click.Parameter, str], list[CompletionItem]]:
    """What a shell completes: ``runs``, ``sites`` and the others of ``runner.cli.completion``, imported only then."""

    def complete(context: click.Context, _parameter: click.Parameter, typed: str) -> list[CompletionItem]:
        from runner.cli.completion import values

        return values(kind, context, typed)

    return complete


RUN = click.argument("run", required=False, shell_complete=by_shell("runs"))
RUN_OR_STUDY = click.argument("run", metavar="[RUN|STUDY]", required=False, shell_complete=by_shell("runs and studies"))


def say(line: str) -> None:
    """Print a line for people, apart from a command's output."""
    click.echo(line, err=True)


def mount(_ctx: click.Context, _param: click.Parameter, values: tuple[str, ...]) -> tuple[Mount, ...]:
    """``SRC:DST[:ro]``; SRC becomes absolute where it is relative to the working directory."""
    try:
        return tuple(parse_mount(value) for value in values)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


def environment(
    _ctx: click.Context, _param: click.Parameter, values: tuple[str, ...]
) -> tuple[tuple[str, str | None], ...]:
    """``NAME=VALUE``; ``NAME`` for its value in this shell, so that no command line holds a secret; ``-NAME`` (None)
    for a variable that shall not be there.
    """
    return tuple(_variable(value) for value in values)


def _variable(text: str) -> tuple[str, str | None]:
    if not text.startswith("-"):
        return _pair(text, "NAME=VALUE") if "=" in text else _from_shell(text)
    name = text[1:]
    if not name or "=" in name:
        raise click.BadParameter(f"{text!r} is not -NAME, which takes a variable away; NAME=VALUE sets one")
    return name, None


def _from_shell(name: str) -> tuple[str, str]:
    if not name:
        raise click.BadParameter("a variable without a name; use NAME=VALUE, NAME or -NAME")
    if name not in os.environ:
        raise click.BadParameter(f"{name!r} is not set in this shell; use NAME=VALUE")
    return name, os.environ[name]


def setting(_ctx: click.Context, _param: click.Parameter, values: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    """``KEY=VALUE``."""
    return tuple(_pair(value, "KEY=VALUE") for value in values)


def _pair(value: str, form: str) -> tuple[str, str]:
    name, equals, rest = value.partition("=")
    if not equals or not name:
        raise click.BadParameter(f"{value!r} is not {form}")
    return name, rest


def duration_s(_ctx: click.Context, _param: click.Parameter, value: str | None) -> int | None:
    """``M:S``, ``H:M:S`` or ``D-H:M:S`` into seconds."""
    try:
        return None if value is None else parse_duration_s(value)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


_AGES_S = {"m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_SIZES = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}


def age_s(_ctx: click.Context, _param: click.Parameter, value: str | None) -> int | None:
    """``30d``, ``12h``, ``2w``, ``90m`` into seconds."""
    if value is None:
        return None
    found = re.fullmatch(r"(\d{1,6})([mhdw])", value, re.ASCII)
    if not found:
        raise click.BadParameter(f"{value!r} is not an age such as 30d, 12h or 2w")
    return int(found[1]) * _AGES_S[found[2]]


def size_bytes(_ctx: click.Context, _param: click.Parameter, value: str | None) -> int | None:
    """``500G``, ``1.5T``, ``800M`` into bytes; powers of 1000."""
    if value is None:
        return None
    found = re.fullmatch(r"(\d{1,15}(?:\.\d{1,3})?)([KMGT]?)B?", value, re.ASCII)
    if not found:
        raise click.BadParameter(f"{value!r} is not a size such as 500G or 1.5T")
    return int(float(found[1]) * _SIZES[found[2]])
