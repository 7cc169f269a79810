"""Run the scripts that make and prove environments; what their exit codes mean for people."""

from __future__ import annotations

import os
from pathlib import Path

from runner.core import process
from runner.core.errors import InfrastructureError, NotProvenError, ProgramFailedError, RefusedError, RunnerError
from runner.core.progress import Progress
from runner.model import exit_codes

_LAST_LINES = 15
_FULL = "no space left on device"

_FAILURES: dict[int, tuple[type[RunnerError], str, str]] = {
    exit_codes.BUSY: (InfrastructureError, "its lock could not be taken", "see the lines above"),
    exit_codes.NOT_LOADED: (
        RefusedError,
        "its modules, or what is activated, could not be loaded",
        "`module avail` lists the modules; name yours with --module NAME, or in a site file of your own; a conda that "
        "is not there is installed by --conda-installer FILE",
    ),
    exit_codes.NOT_MADE: (
        ProgramFailedError,
        "it could not be made",
        "load a module that has Python and venv, or conda; or --conda-installer FILE",
    ),
    exit_codes.NO_CONDA: (
        ProgramFailedError,
        "conda could not be installed",
        "name an installer of Miniforge or Miniconda for these processors: --conda-installer FILE",
    ),
    exit_codes.NO_FRAMEWORK: (
        ProgramFailedError,
        "the framework could not be installed",
        "--requirement NAME==VERSION",
    ),
    exit_codes.NO_HOROVOD: (ProgramFailedError, "Horovod could not be built", "see the lines above"),
    exit_codes.WRONG_PACKAGES: (
        RefusedError,
        "the packages are not for this Python or machine",
        "collect them by the same Python (--python PROGRAM) on a machine like this one, or make the environment with "
        "the Python that they are for",
    ),
    exit_codes.NOT_PROVEN: (NotProvenError, "its Horovod is not proven", "see the lines above"),
}


def run_script(script: Path, log: Path, progress: Progress, limit_s: float) -> tuple[int, list[str]]:
    """The script's exit code and its last lines; all of them are in the log.

    Raises:
        UnknownStateError: it took longer than ``limit_s`` seconds, and was stopped.
    """
    last: list[str] = []
    with os.fdopen(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "w") as file:

        def keep_line(line: str) -> None:
            file.write(line + "\n")
            file.flush()
            last.append(line)
            del last[:-_LAST_LINES]
            if line.startswith(("horovod: ", "PROVEN", "hello from ")):
                progress.step(line)
            else:
                progress.line(line)

        return process.stream(("bash", script), keep_line, timeout_s=limit_s), last


def failure(code: int, output: list[str], log: str) -> RunnerError:
    """The error for a script's exit code; ``output``: its last lines."""
    if _FULL in "\n".join(output).lower():
        what = "\n".join(("the disk is full:", *output[-_LAST_LINES:]))
        return InfrastructureError(what, where=log, fix="free space there, or in TMPDIR, where pip unpacks")
    kind, what, fix = _FAILURES.get(code, (ProgramFailedError, f"exit code {code}", "see the lines above"))
    return kind("\n".join((f"{what}:", *output[-_LAST_LINES:])), where=log, fix=fix)
