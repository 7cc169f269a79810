"""The clocks that the meter reads, taken when it is first imported: a program may replace those of ``time`` later, as
libraries that freeze time do.
"""

from __future__ import annotations

import time
from types import BuiltinFunctionType
from typing import Any, Callable

monotonic, perf_counter, sleep = time.monotonic, time.perf_counter, time.sleep


def _is_own(clock: object, name: str) -> bool:
    """Whether it is Python's own function of this name."""
    return isinstance(clock, BuiltinFunctionType) and (clock.__module__, clock.__name__) == ("time", name)


REPLACED = tuple(
    f"time.{name}"
    for name, clock in (("monotonic", monotonic), ("perf_counter", perf_counter), ("sleep", sleep))
    if not _is_own(clock, name)
)


def timed(call: Callable[[], Any]) -> tuple[Any, float]:
    """What it returns, and the seconds that it took."""
    began_s = perf_counter()
    return call(), perf_counter() - began_s
