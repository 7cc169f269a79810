"""Options that several verbs share, and their values, parsed strictly."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from runner.cli.table import show
from runner.core.errors import Exit
from runner.core.paths import site_of_shell
from runner.core.text import plain, printable

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from runner.model.plan import Finding

Decorator = Callable[[Any], Any]


def together(*options: Decorator) -> Decorator:
    """One decorator of several options, in the order in which help shows them."""

    def decorate(command: Any) -> Any:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


def by_shell(kind: str) -> Callable[[click.Context, click.Parameter, str], list[CompletionItem]]:
    """What a shell completes: ``runs``, ``sites`` and the others of ``runner.cli.completion``, imported only then."""

    def complete(context: click.Context, _parameter: click.Parameter, typed: str) -> list[CompletionItem]:
        from runner.cli.completion import values

        return values(kind, context, typed)

    return complete


def path_option(
    *names: str, metavar: str | None = "FILE", exists: bool = False, file_okay: bool = True, dir_okay: bool = True,
    **settings: Any,
) -> Decorator:  # fmt: skip
    """An option whose value is a path; a shell completes it."""
    kind = click.Path(exists=exists, file_okay=file_okay, dir_okay=dir_okay, path_type=Path)
    return click.option(*names, type=kind, metavar=metavar, **settings)


def site_option(help: str, default: str | None = None) -> Decorator:
    """``--site``; ``default`` where RUNNER_SITE names none."""

    def default_site() -> str | None:
        return site_of_shell() or default

    return click.option("--site", shell_complete=by_shell("sites"), default=default_site, help=help)


RUN = click.argument("run", required=False, shell_complete=by_shell("runs"))
RUN_OR_STUDY = click.argument("run", metavar="[RUN|STUDY]", required=False, shell_complete=by_shell("runs and studies"))
RUNS_OR_STUDIES = click.argument(
    "runs", nargs=-1, metavar="[RUN|STUDY]...", shell_complete=by_shell("runs and studies")
)
JSON = click.option("--json", "as_json", is_flag=True, help="Print facts as JSON.")
ENGINE = click.option("--engine", metavar="URL", help="Container engine, such as unix:///var/run/docker.sock.")
SIGN = path_option("--sign", "key", metavar="KEY", help="Sign the bundle with this ssh key of yours.")


def say(line: str) -> None:
    """Print a line for people, apart from a command's output."""
    click.echo(plain(line, keep="\n"), err=True)


def warn(text: str) -> None:
    """Print a warning."""
    say(f"warning: {text}")


def show_findings(findings: Iterable[Finding], *, override: bool = True) -> None:
    """Print what checks have to say. ``override``: and what overrides one that refuses."""
    for finding in findings:
        label = "forced" if finding.forced else "refused" if finding.severity == "refuse" else "warning"
        what, fix = printable(finding.what), printable(finding.fix)  # they quote what an image says of itself
        say(f"{label} [{finding.code}]: {what}\n  fix ({finding.who}): {fix}")
        if override and label == "refused":
            say(f"  override: --force {finding.code}")


def answer(facts: object, lines: Iterable[str], *, as_json: bool, exit_code: int = Exit.GOOD, error: Any = None) -> int:
    """Print what a command found, as JSON or for people; returns ``exit_code``.

    Args:
        lines: for people, iterated only for them; one text is printed as it is, byte for byte: a script, a file.
        error: why the exit code is not 0.
    """
    if as_json:
        from runner.cli import json_output

        return json_output.show(facts, exit_code=exit_code, error=error)
    if isinstance(lines, str):
        click.echo(lines.removesuffix("\n"), color=True)
    else:
        show(lines)
    return int(exit_code)


def setting(_ctx: click.Context, _param: click.Parameter, values: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    """``KEY=VALUE``."""
    from runner.preparation.options import pair

    try:
        return tuple(map(pair, values))
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


def _measured(pattern: str, units: dict[str, int], what: str) -> Callable[..., int | None]:
    """A callback that reads a number and its unit."""

    def read(_ctx: click.Context, _param: click.Parameter, value: str | None) -> int | None:
        if value is None:
            return None
        match = re.fullmatch(pattern, value, re.ASCII)
        if not match:
            raise click.BadParameter(f"{value!r} is not {what}")
        return int(float(match[1]) * units[match[2]])

    return read


age_s = _measured(
    r"(\d{1,6})([mhdw])", {"m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}, "an age such as 30d, 12h or 2w"
)
size_bytes = _measured(  # in powers of 1000
    r"(\d{1,15}(?:\.\d{1,3})?)([KMGT]?)B?",
    {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}, "a size such as 500G or 1.5T",
)  # fmt: skip
