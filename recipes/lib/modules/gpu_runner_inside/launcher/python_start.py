"""What each Python of a user's program finds: the meter, and a sitecustomize that sees the worlds of its processes."""

from __future__ import annotations

import os
import shutil
import tempfile
from contextlib import suppress
from typing import Any, Mapping

from gpu_runner_inside import IMPORT_DIRECTORY

START = os.path.join(os.path.dirname(IMPORT_DIRECTORY), "python_start")  # its sitecustomize.py


def is_wanted(env: Mapping[str, str], plan: Mapping[str, Any]) -> bool:
    """The shipped recipes find their modules by themselves, and say which world they saw."""
    return bool(env.get("RUNNER_METER")) or plan.get("result") == "if-left"


def prepare(directory: str | None) -> str | None:
    """A directory in one of the node's own, with sitecustomize.py, for this launcher alone: several steps of a job may
    be there at once. None where none can be made.
    """
    if directory is None:
        return None
    try:
        place = tempfile.mkdtemp(prefix="python-", dir=directory)
        shutil.copy(os.path.join(START, "sitecustomize.py"), place)
    except OSError:
        return None
    return place


def variables(env: Mapping[str, str], wireup: str, place: str | None) -> dict[str, str]:
    """What is added to ``env``: ``place``, as of ``prepare``, is first in PYTHONPATH; its sitecustomize imports the one
    that it hides. ``runner_meter`` is last, so that it hides nothing of the program's. None has a colon: what is
    before that may be another user's.
    """
    start = place or (START if env.get("RUNNER_METER") else None)
    ours = [each if each and os.pathsep not in each else None for each in (start, IMPORT_DIRECTORY)]
    made = {"PYTHONPATH": os.pathsep.join(filter(None, (ours[0], env.get("PYTHONPATH"), ours[1])))}
    if place is not None:
        made["RUNNER_WORLDS"] = place
    if wireup == "own":
        made["RUNNER_METER_UNWATCHED"] = "1"
    return made


def worlds(place: str | None) -> list[dict[str, Any]]:
    """What the program's processes left of their worlds, by local rank."""
    seen = []
    with suppress(OSError, ValueError):
        for name in sorted(filter(str.isdigit, os.listdir(place or "")), key=int):
            with open(os.path.join(place or "", name), encoding="ascii") as file:
                kind, rank, size = file.read().split()
            seen.append({"kind": kind, "rank": int(rank), "size": int(size)})
    return seen
