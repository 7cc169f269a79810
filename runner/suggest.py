"""The most similar valid name, for errors about an unknown one."""

from __future__ import annotations

from collections.abc import Iterable


def instead(wrong: str, names: Iterable[str], otherwise: str) -> str:
    """``did you mean 'x'?``, or ``otherwise`` where no name is near."""
    near = nearest(wrong, names)
    return f"did you mean {near!r}?" if near else otherwise


def nearest(name: str, others: Iterable[str], *, least: float = 0.6) -> str:
    """The most similar of the others; empty where none is as similar as ``least``, a ratio of difflib."""
    import difflib  # every call of this program comes here, and few have something to suggest

    return next(iter(difflib.get_close_matches(name, list(others), n=1, cutoff=least)), "")
