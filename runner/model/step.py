"""A job step as typed arguments and statements, before any shell sees it.

An argument is made of literal Text and named Var parts. Only ``runner.render`` turns one into shell code, so quoting
happens in one place.
"""

from __future__ import annotations

from pathlib import Path

import msgspec


class Text(msgspec.Struct, frozen=True):
    """Literal text: any character but NUL."""

    value: str


class Var(msgspec.Struct, frozen=True):
    """The value of a shell variable of the batch script, never split."""

    name: str


Argument = tuple[Text | Var, ...]

# The contract between a batch script, which sets these variables, and the runtimes, which pass them on.
RUN_DIRECTORY = "runner_run"  # the run directory on the host
JOB_ID = "runner_job"  # the job's number
LIVE = "runner_live"  # of Slurm's scripts alone: the numbers of this user's jobs that Slurm knows; empty: unknown
# Where rank 0 serves the rendezvous, and what only its ranks know: no value of it on a command line.
RENDEZVOUS = ("RUNNER_RDV_HOST", "RUNNER_RDV_PORT", "RUNNER_RDV_KEY")


def text(value: str) -> Argument:
    """An argument of literal text."""
    return (Text(value),)


def library_file(path: Path) -> tuple[Argument, Argument]:
    """The words that start a shell file of the package on a node: its copy in the run directory."""
    return text("/bin/bash"), (Var(RUN_DIRECTORY), Text(f"/{LIBRARY}/{path.name}"))


def texts(*values: str) -> tuple[Argument, ...]:
    """One literal argument for each value."""
    return tuple(text(value) for value in values)


class Export(msgspec.Struct, frozen=True):
    """``export NAME=value`` in the batch script."""

    name: str
    value: Argument


class Run(msgspec.Struct, frozen=True):
    """A command of the batch script, which ends with ``exit_code`` if the command fails."""

    argv: tuple[Argument, ...]
    exit_code: int


class Load(msgspec.Struct, frozen=True):
    """Commands that change the batch script's own environment (``module``, ``source``, ``conda``), one after the
    other; the script ends with ``exit_code`` if one fails.
    """

    commands: tuple[tuple[Argument, ...], ...]
    exit_code: int


class Unset(msgspec.Struct, frozen=True):
    """``unset -v NAME...`` in the batch script."""

    names: tuple[str, ...]


Statement = Export | Run | Load | Unset


class StepSpec(msgspec.Struct, frozen=True):
    """How a runtime wants the plan's step to be run.

    Attributes:
        prelude: statements of the batch script before the step.
        once_a_node: launcher options and command of a first step, one task per node, that makes ready what the ranks
            of a node share; empty for none. does: what that is, in a few words.
        launcher: options that the launcher (srun) gets for the step itself.
        command: the arguments after the launcher's options: container command, launcher program, user program.
        at_end: command that is run once a node when the job ends, however it ends, even if ``once_a_node`` failed;
            empty for none.
        directives: options that the runtime wants in the batch script's head, long name -> value.
        inherits: the ranks need the environment of the shell that submits, since nothing else provides one.
        files: shell files that these commands start, by ``library_file``.
    """

    command: tuple[Argument, ...]
    prelude: tuple[Statement, ...] = ()
    once_a_node: tuple[Argument, ...] = ()
    launcher: tuple[Argument, ...] = ()
    at_end: tuple[Argument, ...] = ()
    directives: tuple[tuple[str, str], ...] = ()
    inherits: bool = False
    files: tuple[Path, ...] = ()
    does: str = ""


LIBRARY = "lib"  # in the run directory: where the launcher and these files lie


class JobScript(msgspec.Struct, frozen=True):
    """A script.

    Attributes:
        text: of ``job.sh``.
        files: name in LIBRARY -> text, of the files that it reads or starts. It names the SHA-256 of each.
    """

    text: str
    files: dict[str, str]
