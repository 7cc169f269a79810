"""From a script's file to a report on its eight steps."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from runner.core.errors import Exit, UsageError
from runner.linting.resolve import Resolver
from runner.linting.rules import data, gradients, output  # noqa: F401  # each registers its rules
from runner.linting.script import RULES, Finding, Script
from runner.linting.source import Folder, read_script

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
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(max(before, _MOST_CALLS))  # of a reader's own calls a line of a script may need twenty
    try:
        resolver = Resolver(Folder(path.absolute().parent))
        resolver.load(read_script(path))
        script = Script(resolver)
        reason = script.not_judged()
        rows = tuple(
            Row(step, name, Finding("cannot tell", reason) if reason else next(judge(script)))
            for step, (name, judge) in sorted(RULES.items())
        )
        return Report(str(path), script.way, script.does_it_itself, rows)
    except RecursionError:
        fix = "give the training script itself"
        raise UsageError("nested too deeply to be read", where=str(path), fix=fix) from None
    finally:
        sys.setrecursionlimit(before)
