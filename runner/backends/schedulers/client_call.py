"""One call of a scheduler's client program: bounded in time, since with the server gone such clients hang."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from runner.core import process
from runner.core.errors import NotAcceptedError, UnknownStateError
from runner.core.invocation import PROGRAM

TIMEOUT_S = 60.0


def call(
    scheduler: str,
    clients: Path | None,
    program: str,
    *options: str,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
) -> process.Completed:
    """Run ``program`` from ``clients`` (None: PATH); any exit code is returned.

    Args:
        scheduler: its name, for messages.
        env: the whole environment; None is ours.

    Raises:
        NotAcceptedError: there is no such program.
        CommandTimeoutError: it did not answer within TIMEOUT_S.
    """
    path = str(clients / program) if clients else program
    try:
        return process.run((path, *options), timeout_s=TIMEOUT_S, cwd=cwd, env=env, check=False)
    except process.CommandNotFoundError as error:
        raise NotAcceptedError(
            f"{program} was not found: this machine has no {scheduler} client",
            where="PATH",
            fix=f"submit from a login node; or use `--site box` after `{PROGRAM} box up`",
        ) from error


def no_answer(scheduler: str, done: process.Completed) -> UnknownStateError:
    """The error for a scheduler that gives no answer, or none that can be understood."""
    return UnknownStateError(
        f"{scheduler} does not answer: {done.last_lines(2)}",
        where=" ".join(done.argv),
        fix="this does not affect the job; try again later",
    )
