"""One call of a scheduler's client program: bounded in time, since with the server gone such clients hang."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from runner import process
from runner.errors import NotAcceptedError, UnknownStateError

TIMEOUT_S = 60.0


def call(
    scheduler: str,
    clients: Path | None,
    program: str,
    *options: str,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
) -> process.Completed:
    """Run ``program`` out of ``clients`` (None: PATH), whatever its exit code.

    Args:
        scheduler: its name, for people.
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
            fix="submit from a login node; or use `--site box` after `python -m runner box up`",
        ) from error


def silent(scheduler: str, done: process.Completed) -> UnknownStateError:
    """What is raised where a scheduler gives no answer that could be understood."""
    return UnknownStateError(
        f"{scheduler} does not answer: {done.last_lines(2)}",
        where=" ".join(done.argv),
        fix="the job is not touched by this; ask again later",
    )
