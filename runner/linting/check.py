"""From a script's file to a report on its eight steps."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from pathlib import Path

from runner.core.errors import Exit, UsageError
from runner.linting import rules  # noqa: F401  # registers them
from runner.linting.names import Resolver
from runner.linting.script import RULES, STEPS, Finding, Script
from runner.linting.source import read_script

_MOST_CALLS = 5000


@dataclass(frozen=True)
class Row:
    """One step of the report, from 1."""

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
        script = Script(Resolver(read_script(path), path.absolute().parent))
        rows = tuple(Row(step, name, _finding(script, step)) for step, name in enumerate(STEPS, 1))
        if script.resolver.is_too_large:
            finding = Finding("cannot tell", "the script is too large to be read to its end")
            rows = tuple(replace(row, finding=finding) for row in rows)
        return Report(str(path), script.way, script.does_it_itself, rows)
    except RecursionError:
        fix = "give the training script itself"
        raise UsageError("nested too deeply to be read", where=str(path), fix=fix) from None
    finally:
        sys.setrecursionlimit(before)


def _finding(script: Script, step: int) -> Finding:
    """The first of the findings of its rules."""
    if script.not_judged:
        return Finding("cannot tell", script.not_judged)
    findings = (finding for judge in RULES[step] for finding in judge(script))
    finding = next(findings, Finding("cannot tell", "no rule of this step decides it"))
    return finding if finding.fix or finding.state == "ok" else replace(finding, fix=script.fix(step))
