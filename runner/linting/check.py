"""From a script's file to a report on its eight steps."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from runner.core.errors import Exit, UsageError
from runner.linting.names import Resolver
from runner.linting.rules import STEPS
from runner.linting.script import Rule, Script, State
from runner.linting.source import read_script

_MOST_CALLS = 5000


@dataclass(frozen=True)
class Finding:
    """What is so of one step.

    Attributes:
        step: its number, from 1.
        place: the line, or ``file:line`` of another file; empty where there is no line.
        fix: what to do, with a line of code, one line for each way of several; empty where nothing is to be done.
    """

    step: int
    name: str
    state: State
    reason: str
    place: str = ""
    fix: str = ""


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
    steps: tuple[Finding, ...]

    @property
    def exit_code(self) -> Exit:
        """Refused where something is missing or wrong."""
        return Exit.REFUSED if any(each.state in ("missing", "wrong") for each in self.steps) else Exit.GOOD


def check(path: Path) -> Report:
    """Read a training script, and the modules beside it that it imports.

    Raises:
        UsageError: it is no Python that can be read; says the line.
    """
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(max(before, _MOST_CALLS))  # of a reader's own calls a line of a script may need twenty
    try:
        script = Script(Resolver(read_script(path), path.absolute().parent))
        steps = tuple(_finding(script, step, *each) for step, each in enumerate(STEPS.items(), 1))
        if script.resolver.is_too_large:
            large = "the script is too large to be read to its end"
            steps = tuple(Finding(each.step, each.name, "cannot tell", large) for each in steps)
        return Report(str(path), script.way, script.does_it_itself, steps)
    except RecursionError:
        fix = "give the training script itself"
        raise UsageError("nested too deeply to be read", where=str(path), fix=fix) from None
    finally:
        sys.setrecursionlimit(before)


def _finding(script: Script, step: int, name: str, rules: tuple[Rule, ...]) -> Finding:
    """The first claim of the step's rules that is so."""
    if script.not_judged:
        return Finding(step, name, "cannot tell", script.not_judged)
    for state, where, reason, *fixes in (claim for judge in rules for claim in judge(script)):
        call = None if isinstance(where, bool) else next(iter(where), None)
        if call is not None or where is True:
            is_unsure = state == "missing" and script.uncertain
            said = reason if call is None else reason.replace("{}", call.last)
            said, place = f"{said}; but {script.uncertain}" if is_unsure else said, call.place if call else ""
            fix = fixes[0] if fixes else "" if state == "ok" else script.fix(step)
            return Finding(step, name, "cannot tell" if is_unsure else state, said, place, fix)
    return Finding(step, name, "cannot tell", "no rule of this step decides it", fix=script.fix(step))
