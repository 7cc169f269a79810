"""Runs a builder's program: its steps and lines go to the progress, its last lines into the error."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from runner.core import process
from runner.core.errors import InfrastructureError, ProgramFailedError
from runner.core.progress import Progress
from runner.images.building import buildlog
from runner.images.building.engine_build import LAST_LINES

_NEVER = re.compile(r"(?!)")
_LIMIT_S = 6 * 3600.0  # a compile on a busy login node, with room


def followed(
    command: Sequence[str | Path],
    progress: Progress,
    *,
    what: str,
    room: str,
    env: Mapping[str, str] | None = None,
    begins: re.Pattern[str] = _NEVER,
) -> None:
    """Run a program of a build.

    Args:
        what: describes the program in messages. room: the disk that it fills.
        env: its whole environment; None inherits ours.
        begins: matches a line that starts a step, besides those of engines; its first group is the step.

    Raises:
        ProgramFailedError: it failed; the last step that it named and its last lines. InfrastructureError: for room.
    """
    log = buildlog.BuildLog()
    step = ""
    last: list[str] = []

    def take(line: str) -> None:
        nonlocal step
        for event in log.feed({"stream": line + "\n"}):
            if isinstance(event, buildlog.Step):
                step = event.text
                last.clear()
                progress.step(event.text, event.number, event.total)
            elif isinstance(event, buildlog.Line) and (match := begins.fullmatch(event.text)):
                step = match[1]
                last.clear()
                progress.step(step)
            elif isinstance(event, buildlog.Line):
                last.append(event.text)
                del last[:-LAST_LINES]
                progress.line(event.text)

    code = process.stream(command, take, timeout_s=_LIMIT_S, env=env)
    if code == 0:
        return
    output = "\n".join(last)
    if "no space left" in output.lower() or "disk quota exceeded" in output.lower():
        full = f"{what} has filled the disk:\n{output}"
        raise InfrastructureError(full, where=step or what, fix=f"free space in {room}")
    raise ProgramFailedError(
        f"{what} failed with exit code {code}:\n{output}",
        where=step or str(command[0]),
        fix="the lines above are its last ones; fix what they name and build again",
    )
