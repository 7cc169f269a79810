"""How the user called this program, for hints that can be typed; what to say where it lacks a package."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def missing_module(module: str, checkout: Path | None = None) -> str:
    """What is missing, and the command that brings it.

    Args:
        module: the one that was not found. checkout: where this package lies, or the site-packages that it is in.
    """
    from pathlib import Path  # no time of help's

    checkout = checkout or Path(__file__).resolve().parents[2]
    what = f"error: {sys.executable} has no module {module}, which gpu-runner needs"
    if not (checkout / "Makefile").is_file():
        return f"{what}\n  fix:   install gpu-runner's release file again with pip, which brings what it needs"
    activate = shlex.quote(str(checkout / ".venv/bin/activate"))
    made = (checkout / ".venv/.ready").is_file()
    make = "" if made else f"make -C {shlex.quote(str(checkout))} venv && "
    return f"{what}\n  fix:   {make}. {activate}"


_INSTALLED = "gpu-runner"
_MODULE = "runner"


def _in_path(program: str) -> str | None:
    """As ``shutil.which``, whose import takes longer than this."""
    files = (f"{directory}/{program}" for directory in os.get_exec_path())
    return next((file for file in files if os.access(file, os.X_OK)), None)


def called(words: Sequence[str], find: Callable[[str], str | None] = _in_path) -> str:
    """The words before the first argument: ``gpu-runner``, or ``python3 -m runner`` with the Python of the call.

    Args:
        words: the whole command line of this process, as the system has it: ``sys.orig_argv``.
        find: where a program of PATH is; a program that PATH finds is named without its directory.
    """
    script = next((word for word in words[:2] if os.path.split(word)[1] == _INSTALLED), "")
    if script:
        return _name(script, find)
    module = next((at for at, word in enumerate(words) if word == "-m"), 0)
    if module and list(words[module + 1 : module + 2]) == [_MODULE]:
        return f"{_name(words[0], find)} -m {_MODULE}"
    return _INSTALLED  # inside another program: a test, a notebook


def _name(program: str, find: Callable[[str], str | None]) -> str:
    directory, short = os.path.split(program)
    in_path = find(short)
    # The file behind it says nothing: a virtual environment's Python is a link to the system's, and another program.
    same = in_path is not None and os.path.realpath(os.path.split(in_path)[0]) == os.path.realpath(directory)
    return short if same or not directory else shlex.quote(program)


# Handed on by ssh, it is what the user calls on their own machine (runner/cli/remote.py).
PROGRAM = os.environ.get("RUNNER_REMOTE_PROGRAM") or called(sys.orig_argv)
