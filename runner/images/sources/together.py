"""Several pieces of work at once, ended together by the first that fails and by the user."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from typing import TypeVar

_TICK_S = 0.5
Result = TypeVar("Result")


def together(
    works: Sequence[Callable[[], Result]], *, workers: int | None, tick: Callable[[], None], stop: threading.Event
) -> list[Result]:
    """Results in the order of ``works``.

    Args:
        workers: threads; None means as many as the machine's processors want.
        tick: called by this thread every half second, and whenever all has ended.
        stop: set when nothing more is wanted; the works are expected to look at it, and waited for.

    Raises:
        The first failure of a work; whatever interrupts this thread.
    """
    pool = ThreadPoolExecutor(workers, thread_name_prefix="together")
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
