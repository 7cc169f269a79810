"""Text for a terminal."""

from __future__ import annotations

_UNITS = ((86_400, "d"), (3_600, "h"), (60, "min"))


def age(seconds: float) -> str:
    """``45 s``, ``12 min``, ``3 h``, ``2 d``: whole units, rounded down."""
    for length, unit in _UNITS:
        if seconds >= length:
            return f"{int(seconds // length)} {unit}"
    return f"{int(max(0.0, seconds))} s"
