"""The most similar valid name, for errors about an unknown one."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def instead(wrong: str, names: Iterable[str], otherwise: str) -> str:
    """``did you mean 'x'?``, or ``otherwise`` where no name is near."""
    near = difflib.get_close_matches(wrong, list(names), n=1)
    return f"did you mean {near[0]!r}?" if near else otherwise
