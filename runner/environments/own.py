"""An environment that the user made without us: the one that this shell is in, or that of a directory.

What an environment is, its own Python says (``sys.prefix``); variables such as VIRTUAL_ENV may be left over.
"""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path

import msgspec

from runner.core import file_system, process
from runner.core.errors import RefusedError
from runner.model.environment import Activate, Environment, Setup
from runner.model.image import ImageFacts

_ASK = 'import json, sys; print(json.dumps([sys.prefix, "%d.%d.%d" % sys.version_info[:3]]))'
_ASK_S = 60.0  # a cold Python on a network file system
_HISTORY_BYTES = 10_000_000
_MAKER = re.compile(r"^# cmd: (/.*?)/(?:bin|condabin)/(?:conda|mamba) ", re.MULTILINE)
_CONDA_SH = "etc/profile.d/conda.sh"


def of_shell() -> tuple[Environment | None, str]:
    """The environment whose ``python3`` this shell's PATH finds first, and why it cannot be used in a job; None where
    that is no environment's: the system's, or a module's.

    Raises:
        RunnerError: this Python does not answer.
    """
    python = process.find("python3")
    if python is None:
        return None, ""
    prefix, version = _answer(python)
    try:
        return _of(Path(prefix), version), ""
    except RefusedError as error:
        return None, f"environment: {prefix} is active in this shell and NOT used: {error.what} ({error.fix})"


def active_in_shell() -> str:
    """The directory of the environment whose ``python3`` this shell's PATH finds first; empty where it is none's. By
    its files alone: nothing is started.
    """
    python = process.find("python3")
    root = python.absolute().parent.parent if python is not None else None
    if root is None or not ((root / "pyvenv.cfg").is_file() or (root / "conda-meta").is_dir()):
        return ""
    return str(root)


def of_directory(root: Path) -> Environment | None:
    """The virtual or conda environment of a directory; None where there is none.

    Raises:
        RefusedError: it is a conda environment, and conda itself is not found. RunnerError: its Python does not answer.
    """
    python = root / "bin/python3"
    if not os.access(python, os.X_OK):
        return None
    prefix, version = _answer(python)
    return _of(root, version) if os.path.realpath(prefix) == os.path.realpath(root) else None


def fault(root: Path) -> str:
    """Why what is in a directory is no environment that works; empty where there is no directory."""
    if not root.is_dir():
        return "it is no directory" if root.exists() else ""
    if not (root / "pyvenv.cfg").is_file() and not (root / "conda-meta").is_dir():
        return "it is no virtual environment (no pyvenv.cfg in it) and no conda environment (no conda-meta)"
    python = root / "bin/python3"
    if python.is_symlink() and not python.exists():
        return f"its bin/python3 leads to {os.path.realpath(python)}, which is not there"
    if not os.access(python, os.X_OK):
        return "it has no bin/python3 that can be started"
    if (root / "pyvenv.cfg").is_file() and not (root / "bin/activate").is_file():
        return "it has no bin/activate"
    return "its bin/python3 says that it is of another environment"


def _answer(python: Path) -> tuple[str, str]:
    """Its prefix and version: the last line, as what starts a Python may print a banner before.

    Raises:
        RunnerError: it does not answer, or with something else.
    """
    said = process.run((python, "-I", "-c", _ASK), timeout_s=_ASK_S).out
    try:
        prefix, version = msgspec.json.decode(said.strip().rpartition("\n")[2], type=tuple[str, str])
    except (ValueError, msgspec.MsgspecError):
        raise RefusedError(
            "this python3 does not say which environment it is of",
            where=str(python),
            fix="its last line must be its prefix and version, as JSON; see what this prints: "
            + shlex.join((str(python), "-I", "-c", _ASK)),
        ) from None
    return prefix, version


def _of(prefix: Path, version: str) -> Environment | None:
    if (prefix / "pyvenv.cfg").is_file() and (prefix / "bin/activate").is_file():
        setup = Setup(activate=Activate(virtualenv=str(prefix)))
        return Environment(str(prefix), "virtualenv", "", str(prefix), "", setup, ImageFacts(), python=version)
    if (prefix / "conda-meta").is_dir():
        setup = Setup(conda=str(_conda(prefix)), activate=Activate(conda=str(prefix)))
        return Environment(str(prefix), "conda", "", str(prefix), "", setup, ImageFacts(), python=version)
    return None


def _makers(prefix: Path) -> tuple[Path, ...]:
    """The installations whose commands the environment's history names (seen with conda 26.7)."""
    try:
        history = file_system.read_bytes(prefix / "conda-meta/history", _HISTORY_BYTES).decode(
            "utf-8", "surrogateescape"
        )
    except OSError:
        return ()
    return tuple(Path(place) for place in dict.fromkeys(_MAKER.findall(history)))


def _conda(prefix: Path) -> Path:
    """The installation of conda that can activate ``prefix``: the shell's, the one that it lies in, or that made it."""
    shell = os.environ.get("CONDA_EXE") or str(process.find("conda") or "")
    places = [Path(shell).parents[1]] if shell.count("/") >= 2 else []
    for place in (*places, prefix, prefix.parent.parent, *_makers(prefix)):
        if (place / _CONDA_SH).is_file():
            return place
    raise RefusedError(
        f"no conda that activates {prefix} is found",
        where=str(prefix),
        fix=f"set CONDA_EXE to the bin/conda of an installation with {_CONDA_SH}",
    )
