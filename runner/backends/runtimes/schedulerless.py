"""Which runtime a job uses where no scheduler gives out the nodes."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from runner.model.runtimes import RUNTIMES


def choose(wanted: Iterable[str], device: str, installed: Callable[[str], bool]) -> str | None:
    """The first of ``wanted`` that works without a scheduler, is installed and can use the device; None if none is.

    Args:
        installed: whether a program is in PATH.
    """
    for name in wanted:
        facts = RUNTIMES.get(name)
        if facts and facts.without_scheduler and installed(facts.program) and (facts.brings_driver or device == "cpu"):
            return name
    return None
