"""Asking: many short commands at once, each bounded in time, so that a dead controller or disk costs one time-out."""

from __future__ import annotations

import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from runner.core import process
from runner.core.errors import RunnerError

TIMEOUT_S = 20.0
MOST = 4_000_000  # characters that are kept of an answer


@dataclass(frozen=True)
class Answer:
    """What a command said.

    Attributes:
        command: as a person would type it.
        problem: why there is no answer; empty where there is one. ``absent``: there is no such program.
    """

    command: str
    out: str = ""
    err: str = ""
    problem: str = ""
    absent: bool = False

    @property
    def both_streams(self) -> str:
        """Both streams: some clients answer on the second."""
        return f"{self.out}\n{self.err}"


def ask_all(
    commands: Mapping[str, tuple[str, ...]], clients: Path | None = None, timeout_s: float = TIMEOUT_S
) -> dict[str, Answer]:
    """Run all commands at once; returns an answer for each, under its name.

    Args:
        commands: name -> argument list.
        clients: where the scheduler's client programs lie; None for PATH.
        timeout_s: seconds for each.
    """
    with ThreadPoolExecutor(max_workers=max(1, len(commands))) as pool:
        asked = {name: pool.submit(ask, words, clients, timeout_s) for name, words in commands.items()}
        return {name: answer.result() for name, answer in asked.items()}


def ask(words: tuple[str, ...], clients: Path | None, timeout_s: float) -> Answer:
    """Run one command; Ctrl-C ends it."""
    command = " ".join(words) if len(" ".join(words)) < 100 else f"{words[0]} ..."
    own = clients / words[0] if clients else None
    program = str(own) if own and own.exists() else words[0]
    try:
        done = process.run((program, *words[1:]), timeout_s=timeout_s, check=False, env=_environment())
    except process.CommandNotFoundError as error:
        return Answer(command, problem=error.what, absent=True)
    except RunnerError as error:
        return Answer(command, problem=error.what)
    problem = "" if done.code == 0 else f"exit {done.code}: {done.last_lines(2)}"
    return Answer(command, done.out[:MOST], done.err[:MOST], problem)


def _environment() -> dict[str, str]:
    """Ours in plain English, without what shapes the answers of Slurm's clients (SINFO_FORMAT, SLURM_CLUSTERS)."""
    dropped = ("SLURM_", "SBATCH_", "SINFO_", "SCONTROL_")
    env = {name: value for name, value in os.environ.items() if not name.startswith(dropped) or name == "SLURM_CONF"}
    return {**env, "LC_ALL": "C"}
