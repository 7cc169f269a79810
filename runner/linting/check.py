"""From a script's file to a report on its eight steps."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from runner.errors import Exit, UsageError
from runner.linting import rules
from runner.linting.findings import RULES, Finding
from runner.linting.resolve import Resolver
from runner.linting.script import Script
from runner.linting.source import Folder, read_script
from runner.linting.trace import Trace

__all__ = ["Report", "Row", "check", "rules"]
_MOST_CALLS = 5000


@dataclass(frozen=True)
class Row:
    """One step of the report."""

    step: int
    name: str
    finding: Finding


@dataclass(frozen=True)
class Report:
    """What a script has, lacks and does wrongly.

    Attributes:
        way: ``horovod``, ``ddp`` (torch.distributed), or ``none``.
        does_it_itself: a framework that does the steps, so that nothing of them was looked for; empty for none.
    """

    file: str
    way: str
    does_it_itself: str
    rows: tuple[Row, ...]

    @property
    def exit_code(self) -> Exit:
        """Refused where something is missing or wrong."""
        return Exit.REFUSED if any(row.finding.state in ("missing", "wrong") for row in self.rows) else Exit.GOOD


def check(path: Path) -> Report:
    """Read a training script, and the modules beside it that it imports.

    Raises:
        UsageError: it is no Python that can be read; says the line.
    """
    try:
        with _room_to_nest():
            resolver = Resolver(Folder(path.absolute().parent))
            resolver.load(read_script(path))
            script = Script(Trace(resolver))
            script.trace.read()
            reason = script.not_judged()
            findings = {
                step: Finding("cannot tell", reason) if reason else next(judge(script))
                for step, (_, judge) in sorted(RULES.items())
            }
    except RecursionError:
        fix = "give the training script itself"
        raise UsageError("nested too deeply to be read", where=str(path), fix=fix) from None
    rows = tuple(Row(step, RULES[step][0], finding) for step, finding in findings.items())
    return Report(str(path), script.way, script.does_it_itself, rows)


@contextmanager
def _room_to_nest() -> Iterator[None]:
    """Python's limit counts a reader's own calls, of which a line of a script may need twenty."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(max(before, _MOST_CALLS))
    try:
        yield
    finally:
        sys.setrecursionlimit(before)
