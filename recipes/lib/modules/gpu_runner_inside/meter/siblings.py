"""Other processes of a rank that train while one measures, such as those that share one model (Hogwild): each leaves a
line in the run directory, as none of them knows the others.
"""

from __future__ import annotations

import os
from contextlib import suppress


def leave_line() -> None:
    """This process trains, or is about to."""
    with suppress(OSError):
        path = _file()
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "a", encoding="utf-8", opener=_private) as file:
            file.write(f"{_of_here()}{os.getpid()}\n")


class Siblings:
    """Those of this process from the window's begin on, which is when it is made."""

    def __init__(self) -> None:
        self._before = _others()
        self._are_there = any(map(_lives, self._before))

    @property
    def trained(self) -> bool:
        return self._are_there or len(_others()) > len(self._before)


def _others() -> list[str]:
    """Process ids of this rank's start, each time that one began; none where that is not known."""
    begin = _of_here()
    with suppress(OSError), open(_file(), encoding="utf-8") as file:
        here = [line[len(begin) :].strip() for line in file if line.startswith(begin)]
        return [each for each in here if each != str(os.getpid())]
    return []


def _lives(pid: str) -> bool:
    with suppress(OSError), open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
        return file.read().rpartition(") ")[2][:1] not in ("Z", "X")
    return False


def _of_here() -> str:
    return f"{os.environ.get('RUNNER_TOKEN')} {os.uname().nodename} "


def _file() -> str:
    """Raises FileNotFoundError: outside of a job."""
    run_dir, rank = os.environ.get("RUNNER_RUN_DIR"), os.environ.get("RUNNER_RANK") or os.environ.get("RANK") or "0"
    if not run_dir:
        raise FileNotFoundError
    return os.path.join(run_dir, "ranks", f"{rank}.trains")


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
