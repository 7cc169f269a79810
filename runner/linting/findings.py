"""What a rule says of its step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from runner.linting.trace import Event, Trace

State = Literal["ok", "missing", "wrong", "cannot tell"]


@dataclass(frozen=True)
class Finding:
    """One thing that a rule says.

    Attributes:
        place: the line, or ``file:line`` of another file; empty where there is no line.
        fix: what to do, with a line of code; empty where nothing is to be done.
    """

    state: State
    reason: str
    place: str = ""
    fix: str = ""


@dataclass(frozen=True)
class Script:
    """A script that was read, and how it trains.

    Attributes:
        way: ``horovod``, ``ddp`` (torch.distributed), or ``none``.
        framework: ``torch`` or ``tensorflow``.
        does_it_itself: a framework that does the steps by itself: Lightning, Accelerate; empty for none.
    """

    trace: Trace
    way: Literal["horovod", "ddp", "none"]
    framework: Literal["torch", "tensorflow"]
    does_it_itself: str = ""

    def missing(self, reason: str, fix: str) -> Finding:
        """A step that was not found: missing, unless something of the script could not be read."""
        if self.trace.uncertain:
            return Finding("cannot tell", f"{reason}; but {self.trace.uncertain}", fix=fix)
        return Finding("missing", reason, fix=fix)


def ok(reason: str, event: Event | None = None) -> Finding:
    """A step that is there."""
    return Finding("ok", reason, event.place if event else "")


def wrong(reason: str, event: Event, fix: str) -> Finding:
    """A step that is done wrongly."""
    return Finding("wrong", reason, event.place, fix)


def unclear(reason: str, event: Event | None = None, fix: str = "") -> Finding:
    """A step that cannot be judged."""
    return Finding("cannot tell", reason, event.place if event else "", fix)
