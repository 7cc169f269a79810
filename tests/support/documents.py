"""The JSON documents that commands print with ``--json``."""

from __future__ import annotations

import json
from typing import Any

import msgspec

from runner.model.output import Document


def document(printed: str | bytes) -> Document:
    """The one document that a command printed, and nothing else.

    Raises:
        AssertionError, ValueError: it is none, or says that it both failed and did not.
    """
    found = msgspec.convert(json.loads(printed), Document, strict=True)
    assert (found.error is None) == (found.exit_code == 0), found
    return found


def result(printed: str | bytes) -> Any:
    """What the command is for, of its document."""
    return document(printed).result
