"""The steps as a Dockerfile for Charliecloud: flat, with nothing left to substitute.

Charliecloud 0.31 reads no ``${BASE}`` in FROM, and forgets a build argument that a second stage asks for again
(its lib/image.py, GRAMMAR_DOCKERFILE, and lib/build.py, Arg). It does not know LABEL: labels are in the sidecar.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from runner.core.errors import RefusedError
from runner.images.building.without_engine.steps import Arg, Copy, Env, Run, Stage

_WORD = re.compile(r"[A-Za-z0-9_.,:/@+-]+")


def rendered(stages: Sequence[Stage]) -> str:
    """The whole file.

    Raises:
        RefusedError: its grammar cannot express a value.
    """
    return "\n".join("\n".join(_lines(stage)) + "\n" for stage in stages)


def _lines(stage: Stage) -> Iterator[str]:
    yield f"FROM {stage.base}" + (f" AS {stage.name}" if stage.name else "")
    for step in stage.steps:
        if isinstance(step, Copy):
            origin = [f"--from={step.stage}"] if step.stage else []
            yield " ".join(["COPY", *origin, *step.sources, step.target])
        elif isinstance(step, Run):
            yield f"RUN {step.command}"
        elif isinstance(step, (Arg, Env)):
            yield f"{'ARG' if isinstance(step, Arg) else 'ENV'} {step.name}={_quoted(step.value, step.name)}"


def _quoted(value: str, name: str) -> str:
    """One plain word is left unquoted, as quotes around it would stay in the value; else double quotes."""
    if _WORD.fullmatch(value):
        return value
    if any(letter in '"\\$' or not letter.isprintable() for letter in value):
        raise RefusedError(f"ch-image's Dockerfiles cannot express this value of {name}: {value!r}", where=name)
    return f'"{value}"'
