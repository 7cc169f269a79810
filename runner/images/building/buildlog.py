"""What a build says, as events: engines (Docker's classic builder, Podman) and builders' programs."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from runner.core import process
from runner.core.errors import InfrastructureError, ProgramFailedError
from runner.core.progress import Progress

LAST_LINES = 25  # of a failed build, in its message
_PROGRAM_LIMIT_S = 6 * 3600.0  # a compile on a busy login node, with room
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_STEP = re.compile(r"(?:\[\d+/\d+\] )?(?:Step|STEP) (\d+)/(\d+) ?: (.*)")
_RUNNING = re.compile(r" ?---> Running in ([0-9a-f]{12,64})\s*$")
_MADE = re.compile(r" ?---?> ([0-9a-f]{11,64})\s*")
_BOOKKEEPING = re.compile(r" ?---?> Using cache\s*|Removing intermediate container [0-9a-f]+\s*")


@dataclass(frozen=True)
class Step:
    """A step has begun."""

    number: int
    total: int
    text: str


@dataclass(frozen=True)
class Line:
    """A whole line of a step's output."""

    text: str


@dataclass(frozen=True)
class Made:
    """The engine runs the step in this container, or the step has ended with this image, or had in an earlier build."""

    kind: Literal["containers", "images"]
    id: str


@dataclass(frozen=True)
class Failed:
    """The build failed; ``code`` is the program's exit code where the engine says it (Podman does not)."""

    message: str
    code: int | None


Event = Step | Line | Made | Failed


class BuildLog:
    """Turns decoded chunks into events; text arrives in pieces, an event is made of whole lines."""

    def __init__(self) -> None:
        self._rest = ""

    def feed(self, chunk: Mapping[str, Any]) -> Iterator[Event]:
        """Events of one chunk."""
        if "errorDetail" in chunk or "error" in chunk:
            yield from self.end()
            detail = chunk.get("errorDetail") or {}
            yield Failed(str(detail.get("message") or chunk.get("error")).strip(), detail.get("code"))
            return
        if chunk.get("status"):
            yield Line(" ".join(str(chunk[key]) for key in ("id", "status", "progress") if chunk.get(key)))
        *lines, self._rest = (self._rest + str(chunk.get("stream", ""))).replace("\r\n", "\n").split("\n")
        for line in lines:
            yield from _events(line)

    def end(self) -> Iterator[Event]:
        """Events of what came without a newline at its end."""
        rest, self._rest = self._rest, ""
        if rest:
            yield from _events(rest)


def _events(coloured: str) -> Iterator[Event]:
    line = _COLOUR.sub("", coloured)
    if step := _STEP.fullmatch(line):
        yield Step(int(step[1]), int(step[2]), step[3])
    elif running := _RUNNING.fullmatch(line):
        yield Made("containers", running[1])
    elif made := _MADE.fullmatch(line):
        yield Made("images", made[1])
    elif line.strip() and not _BOOKKEEPING.fullmatch(line):
        yield Line(line.rstrip("\r").rsplit("\r", 1)[-1])


class Report:
    """Shows a build's events, and keeps the step that runs and its last lines for the message of a failure."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self.step = Step(0, 0, "")
        self.last: list[str] = []

    def take(self, event: Event) -> None:
        """Show a step or a line."""
        if isinstance(event, Step):
            self.step = event
            self.last.clear()
            self._progress.step(event.text, event.number, event.total)
        elif isinstance(event, Line):
            self.last.append(event.text)
            del self.last[:-LAST_LINES]
            self._progress.line(event.text)


def followed(
    command: Sequence[str | Path], progress: Progress, *, what: str, room: str, env: Mapping[str, str] | None = None
) -> None:
    """Run a program of a build. ProgramFailedError: it failed; says the last step that it named and its last lines.

    Args:
        what: describes the program in messages. room: the disk that it fills.
    """
    log, report = BuildLog(), Report(progress)

    def take(line: str) -> None:
        for event in log.feed({"stream": line + "\n"}):
            report.take(event)

    code = process.stream(command, take, timeout_s=_PROGRAM_LIMIT_S, env=env)
    if code == 0:
        return
    output = "\n".join(report.last)
    where = report.step.text or what
    if "no space left" in output.lower() or "disk quota exceeded" in output.lower():
        full = f"{what} has filled the disk:\n{output}"
        raise InfrastructureError(full, where=where, fix=f"free space in {room}")
    raise ProgramFailedError(
        f"{what} failed with exit code {code}:\n{output}",
        where=where,
        fix="the lines above are its last ones; fix what they name and build again",
    )
