"""Why a container did not start, by the log of one rank or of one node.

Pyxis writes a line that hides the cause, and the cause behind it, as Enroot's log. What stands after the end of a step
by others (SIGTERM, CANCELLED) tells only of that end.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from runner.diagnosis.catalogue import FAILURES, find
from runner.diagnosis.failure import Failure

SILENT = "Enroot ended without a message"
_STARTER = re.compile(r"^(?:slurmstepd(?:-(?P<node>\S+))?: error: )")
_AFTERMATH = re.compile(
    r"\*\*\* (?:STEP|JOB) \S+ ON \S+ CANCELLED AT|pyxis: received SIGTERM|terminated with signal 15\b"
    r"|failed with error code: 143\b|exited with return code 143\b|srun: forcing job termination"
)
_LOG_BEGINS = "pyxis: printing enroot log file:"
_LOG_LINE = "pyxis:     "
_UNTELLING = ("[INFO]", "Parallel unsquashfs")


@dataclass(frozen=True)
class ContainerFault:
    """What one log says of a container that did not start.

    Attributes:
        line: without what the task starter and Pyxis put before it.
        values: what the failure's pattern found in it; ``before``: the runtime's line before.
        node: as the line itself names it; empty where it does not.
        rank: whose log it is; None for a log of a node or of the batch script.
        file: name of the log.
    """

    failure: Failure
    line: str
    values: dict[str, str] = field(default_factory=dict)
    node: str = ""
    rank: int | None = None
    file: str = ""

    @property
    def is_specific(self) -> bool:
        """It names a cause, not only that there is one."""
        return "{where}:" in self.failure.cause and self.failure.code != "enroot-silent"


def fault(lines: Iterable[str], *, some_started: bool) -> ContainerFault | None:
    """The most specific failure of the catalogue that a log shows, its first line; None where it shows none.

    Args:
        some_started: ranks of the same job have started: then a line that only holds the word "container" counts no
            more.
    """
    context = "some" if some_started else "none"
    best: tuple[int, ContainerFault] | None = None
    before = ""
    for text, node in _telling(lines):
        failure = find("container log", text, context)
        if failure is not None:
            place = FAILURES.index(failure)
            if best is None or place < best[0]:
                best = (place, ContainerFault(failure, _short(text), _values(failure, text, before), node))
        if text.startswith((_LOG_LINE, "enroot", "nvidia-container-cli", "[WARN]")):
            before = _short(text)
    return best[1] if best else None


def _telling(lines: Iterable[str]) -> Iterable[tuple[str, str]]:
    """The lines before the aftermath, without the task starter's prefix, each with the node that the prefix names; an
    Enroot log of no lines as a line of its own.
    """
    in_log = empty = False
    node = ""
    for line in lines:
        if _AFTERMATH.search(line):
            return  # what an interrupted Enroot has not written, it would not have written
        starter = _STARTER.match(line)
        text = (line[starter.end() :] if starter else line).rstrip()
        if in_log and not text.startswith(_LOG_LINE.rstrip()):
            in_log = False
        elif in_log and text.startswith(_LOG_LINE):
            empty = False
        if empty and not in_log:
            yield SILENT, node
            empty = False
        node = (starter["node"] or "") if starter else ""
        if text == _LOG_BEGINS:
            in_log = empty = True
        elif not any(word in text for word in _UNTELLING):
            yield text, node
    if empty:
        yield SILENT, node


def _values(failure: Failure, text: str, before: str) -> dict[str, str]:
    match = re.search(failure.pattern, text)
    groups = match.groupdict() if match else {}
    return {name: value for name, value in groups.items() if value} | {"before": before or _short(text)}


def _short(text: str) -> str:
    return text.removeprefix(_LOG_LINE).strip()
