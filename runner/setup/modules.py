"""Whether the submitting shell's Python has the modules that a program imports."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from runner.core import process
from runner.core.invocation import PROGRAM

# Looks, and imports nothing: torch alone would take seconds.
_LOOK = """\
import sys, importlib.util
print("{}.{}".format(*sys.version_info))
for name in sys.argv[1:]:
    if importlib.util.find_spec(name) is None:
        print(name)
"""
_FRAMEWORKS = {"torch": "pytorch", "tensorflow": "tensorflow"}


def lacking(needs: Sequence[str], python: Path | None = None) -> tuple[str, str]:
    """What a Python (None: ``python3`` of PATH) lacks to run a program that imports ``needs``, and the commands that
    provide it; empty if it lacks nothing.
    """
    python = python or process.find("python3")
    if python is None:
        return "no python3 is in PATH", "activate an environment that has one"
    done = process.run((python, "-c", _LOOK, *needs), timeout_s=60, check=False)
    version, *absent = done.out.split() or ["?"]
    if done.code != 0 or version.startswith("2."):
        return f"{python} cannot be used (version {version}): {done.last_lines(1)}", "activate another environment"
    if not absent:
        return "", ""
    return f"{python} (Python {version}) has no {' and no '.join(absent)}", _fix(needs, absent)


def _fix(needs: Sequence[str], absent: Sequence[str]) -> str:
    if "horovod" in absent:
        framework = next((_FRAMEWORKS[name] for name in needs if name in _FRAMEWORKS), "pytorch")
        return f"{PROGRAM} env create NAME --framework {framework} --at DIR, and --env-name DIR/NAME"
    return "in the environment that is to be used: python3 -m pip install " + " ".join(absent)
