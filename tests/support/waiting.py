"""Waiting for what another process is about to do."""

import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

_Seen = TypeVar("_Seen")


def until(
    look: Callable[[], _Seen], what: str = "the condition", *, timeout_s: float = 60, every_s: float = 0.1
) -> _Seen:
    """Look again and again until what is seen is true; returns it.

    Raises:
        AssertionError: not within the time; it names ``what`` and what was seen last.
    """
    deadline = time.monotonic() + timeout_s
    while not (seen := look()):
        assert time.monotonic() < deadline, f"not within {timeout_s:g} s: {what}; last seen: {seen!r}"
        time.sleep(every_s)
    return seen


def is_running(pid: int) -> bool:
    """Whether the process is there and no zombie."""
    with suppress(OSError):
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text()
    return False
