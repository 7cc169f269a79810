"""The JSON documents that commands print with ``--json``."""

import json
from typing import Any

import msgspec

from runner.cli.results import json_schema
from runner.model.output import Document
from tests.support.json_schema import faults

_SCHEMA = json_schema()


def document(printed: str | bytes) -> Document:
    """The one document that a command printed, and nothing else.

    Raises:
        AssertionError, ValueError: it is none, is not as the schema says, or says that it both failed and did not.
    """
    value = json.loads(printed)
    wrong = faults(value, _SCHEMA)
    assert not wrong, "\n".join(wrong)
    made = msgspec.convert(value, Document, strict=True)
    assert (made.error is None) == (made.exit_code == 0), made
    return made


def result(printed: str | bytes) -> Any:
    """What the command is for, of its document."""
    return document(printed).result
