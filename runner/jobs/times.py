"""Times of records, for people and for JSON."""

from __future__ import annotations

from datetime import datetime, timezone


def utc(seconds: float | None) -> datetime | None:
    """A Unix time in whole seconds; None where it is unknown, or of a damaged record."""
    try:
        return None if seconds is None else datetime.fromtimestamp(int(seconds), timezone.utc)
    except (ValueError, OverflowError, OSError):
        return None
