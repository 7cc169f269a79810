"""How long work tells what it is doing; the command line decides how it looks."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """Receives what a build or a conversion is doing."""

    def step(self, text: str, done: int | None = None, total: int | None = None) -> None:
        """A new step has begun, ``done`` of ``total`` where that is known."""

    def line(self, text: str) -> None:
        """A line of the step's own output."""

    def moved(self, done: int, total: int | None) -> None:
        """The step has dealt with ``done`` bytes, of about ``total`` where that is known; called as often as wanted."""


class Silent:
    """Says nothing."""

    def step(self, text: str, done: int | None = None, total: int | None = None) -> None: ...

    def line(self, text: str) -> None: ...

    def moved(self, done: int, total: int | None) -> None: ...
