"""``--json``: one document of one shape on standard output, whatever happened (docs/agents.md).

Words for people go to standard error then, as always.
"""

from __future__ import annotations

import json
from collections.abc import Iterable

import click
import msgspec

from runner.core.errors import Exit, RunnerError
from runner.core.hide import hidden
from runner.model.output import SCHEMA, Document, Problem
from runner.model.plan import Finding
from runner.model.verdict import Verdict

_USER = (Exit.USAGE, Exit.REFUSED, Exit.NOT_ACCEPTED, Exit.PROGRAM_FAILED, Exit.NOT_PROVEN, Exit.INTERRUPTED)
_WHO = {**dict.fromkeys(_USER, "user"), Exit.INFRASTRUCTURE: "infrastructure"}


def show(
    result: object, *, exit_code: int = Exit.GOOD, error: Problem | None = None, command: str | None = None
) -> int:
    """Print the command's document; returns ``exit_code``.

    Args:
        result: structs, and lists and dictionaries of them; None where an error left none.
        error: given exactly where ``exit_code`` is not 0.
        command: where it is not the one that click runs now.
    """
    assert (error is None) == (exit_code == Exit.GOOD), "an error has an exit code, and an exit code an error"
    document = Document(SCHEMA, _running() if command is None else command, int(exit_code), error, result)
    # Not by msgspec's encoder: paths and scripts may hold bytes that are no UTF-8, and survive here as escapes.
    click.echo(json.dumps(msgspec.to_builtins(document, enc_hook=str)))
    return int(exit_code)


def show_error(error: RunnerError, command: str) -> int:
    """Print the document of a command that ended with ``error``; returns its exit code."""
    return show(None, exit_code=error.code, error=of_error(error), command=command)


def of_error(error: RunnerError) -> Problem:
    """An error of the program's own, by the name of its exit code: ``not-accepted``."""
    name = error.code.name.lower().replace("_", "-")
    return Problem(name, hidden(error.what), hidden(error.where), hidden(error.fix), _WHO.get(error.code, ""))


def of_findings(findings: Iterable[Finding]) -> Problem | None:
    """The first finding that refuses; None if none does."""
    refusing = [finding for finding in findings if finding.severity == "refuse" and not finding.forced]
    if not refusing:
        return None
    first = refusing[0]
    return Problem(first.code, first.what, fix=first.fix, who=first.who)


def of_verdict(verdict: Verdict) -> Problem | None:
    """Why a run is not good; None if it is."""
    if verdict.exit_code == Exit.GOOD:
        return None
    what = verdict.reasons[0] if verdict.reasons else f"the run is {verdict.outcome}"
    return Problem(verdict.outcome, what, verdict.log, verdict.fix, verdict.who)


def _running() -> str:
    """The command that click runs now, without its arguments: ``images list``."""
    context: click.Context | None = click.get_current_context()
    names: list[str] = []
    while context is not None and context.parent is not None:
        names.insert(0, context.info_name or "")
        context = context.parent
    return " ".join(names)
