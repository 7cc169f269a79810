"""The umask: ours keeps other users from writing to what we make, and the user's own is what programs get back."""

from __future__ import annotations

import os

_OURS = 0o022  # bits that are always set
_kept: list[int] = []  # the user's, once ours is another


def restrict() -> None:
    """From here on other users can write to nothing that this process makes; the user's own umask is kept."""
    _kept[:] = [of_user()]
    os.umask(_kept[0] | _OURS)


def of_user() -> int:
    """The umask that this process was started with."""
    if _kept:
        return _kept[0]
    current = os.umask(0o077)
    os.umask(current)
    return current
