"""Runs several pieces of work at once; all stop when one fails or the user interrupts."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from typing import TypeVar

_TICK_S = 0.5
Result = TypeVar("Result")


def run_in_parallel(
    works: Sequence[Callable[[], Result]], *, workers: int | None, tick: Callable[[], None], stop: threading.Event
) -> list[Result]:
    """Results in the order of ``works``.

    Args:
        workers: threads; None means as many as suit the machine's processors.
        tick: called by this thread every half second, and whenever all has ended.
        stop: set when all work is to stop; each piece must check it, and is waited for.

    Raises:
        The first failure of a work; whatever interrupts this thread.
    """
    pool = ThreadPoolExecutor(workers, thread_name_prefix="parallel")
    try:
        running = [pool.submit(work) for work in works]
        left = set(running)
        while left:
            ended, left = wait(left, timeout=_TICK_S)
            tick()
            for one in ended:
                one.result()
        return [one.result() for one in running]
    finally:
        stop.set()
        pool.shutdown(wait=True, cancel_futures=True)
