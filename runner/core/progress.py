"""How long work reports what it is doing; the command line decides how it looks."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """Receives what a build or a conversion is doing."""

    def step(self, text: str, done: int | None = None, total: int | None = None) -> None:
        """A new step begins: number ``done`` of ``total``, where these are known."""

    def line(self, text: str) -> None:
        """A line of the step's own output."""

    def moved(self, done: int, total: int | None) -> None:
        """The step has processed ``done`` bytes, of about ``total`` where known; may be called at any rate."""


class Silent:
    """Says nothing."""

    def step(self, text: str, done: int | None = None, total: int | None = None) -> None: ...

    def line(self, text: str) -> None: ...

    def moved(self, done: int, total: int | None) -> None: ...
