"""Which line of a log tells most of a failure. Pure.

What stands after the end of a step or job, or after its image was unmounted, only follows from that end.
"""

from __future__ import annotations

from collections.abc import Iterable

from runner.diagnosis.log_patterns import AFTERMATH, END, ENDED, ERROR, IMAGE_LOST, PROGRAM_ERROR


def of_script(lines: Iterable[str]) -> str:
    """The last line of the batch script's log that reports an error and no consequence of one; where there is none the
    first that reports a consequence; empty for none.
    """
    telling: list[str] = []
    consequences: list[str] = []
    has_ended = False
    for line in map(str.strip, lines):
        has_ended = has_ended or END.search(line) is not None
        if ERROR.search(line):
            follows = AFTERMATH.search(line) or IMAGE_LOST.search(line) or (has_ended and ENDED.search(line))
            (consequences if follows else telling).append(line)
    return telling[-1] if telling else consequences[0] if consequences else ""


def before_end(lines: Iterable[str]) -> str:
    """Of a rank's log that ends with its step's end, or with the loss of its image, the telling line before: the last
    before the step's end, and the last error before that loss. Empty for any other log, and where there is none.
    """
    shown = [line.strip() for line in lines if line.strip()]
    own = list(shown)
    while own and END.search(own[-1]):
        own.pop()
    line = own[-1] if len(own) < len(shown) and own else ""
    if own and IMAGE_LOST.search(own[-1]):
        first = next(at for at, each in enumerate(own) if IMAGE_LOST.search(each))
        return next((each for each in reversed(own[:first]) if PROGRAM_ERROR.search(each)), line)
    return line
