"""What a rule says of its step, and where rules register themselves."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from runner.linting.script import Script
    from runner.linting.trace import Event

State = Literal["ok", "missing", "wrong", "cannot tell"]


@dataclass(frozen=True)
class Finding:
    """One thing that a rule says.

    Attributes:
        place: the line, or ``file:line`` of another file; empty where there is no line.
        fix: what to do, with a line of code, one line for each way of several; empty where nothing is to be done.
    """

    state: State
    reason: str
    place: str = ""
    fix: str = ""


# A rule is asked for its first finding; what stands after that `yield` is the next case.
Judge = Callable[["Script"], Iterator[Finding]]
RULES: dict[int, tuple[str, Judge]] = {}


def rule(step: int, name: str) -> Callable[[Judge], Judge]:
    """Register the rule of a step, by the step's name in a report."""

    def register(judge: Judge) -> Judge:
        RULES[step] = (name, judge)
        return judge

    return register


def ok(reason: str, event: Event | None = None) -> Finding:
    """A step that is there."""
    return Finding("ok", reason, event.place if event else "")


def wrong(reason: str, event: Event, fix: str) -> Finding:
    """A step that is done wrongly."""
    return Finding("wrong", reason, event.place, fix)


def unclear(reason: str, event: Event | None = None, fix: str = "") -> Finding:
    """A step that cannot be judged."""
    return Finding("cannot tell", reason, event.place if event else "", fix)
