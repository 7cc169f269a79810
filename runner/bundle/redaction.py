"""What leaves this machine in a bundle holds no secret: values of secret names, tokens, users in URLs. Pure.

A file in which nothing looks like a secret is kept byte by byte, so that hashes of it hold.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Sequence
from typing import Any

from runner.hide import hidden_command, hidden_value, is_secret_name
from runner.model.plan import Plan
from runner.redact import REDACTED, redacted

_LEAST_LENGTH = 6  # of a value that is looked for everywhere: a shorter one is part of other words
_COMMANDS = frozenset(("program", "argv", "arguments"))
# Of records: what tells one job step from another. It is no key to anything once the job is over.
_NO_SECRET = frozenset(("token",))


def secrets_of(plan: Plan) -> tuple[str, ...]:
    """Values of the job's secret variables and arguments, also as a script quotes them; the longest first."""
    values = [value for name, value in plan.env if is_secret_name(name)]
    values += [
        word for word, shown in zip(plan.program, hidden_command(plan.program), strict=True) if shown == REDACTED
    ]
    lines = (line for value in values for line in (value, shlex.quote(value).strip("'"), *value.splitlines()))
    return tuple(sorted({line for line in lines if len(line) >= _LEAST_LENGTH}, key=len, reverse=True))


def redacted_text(text: str, secrets: Iterable[str]) -> str:
    """A script or log without secrets."""
    for secret in secrets:
        text = text.replace(secret, REDACTED)
    return redacted(text)[0]


def redacted_json(value: Any, secrets: Sequence[str], key: str = "") -> Any:
    """A JSON value without secrets: by the names of keys and variables, and by its form."""
    if isinstance(value, dict):
        return {name: _by_name(name, each, secrets) for name, each in value.items()}
    if isinstance(value, list):
        if key in _COMMANDS and all(isinstance(each, str) for each in value):
            return [_plain(each, secrets) for each in hidden_command(value)]
        if len(value) == 2 and isinstance(value[0], str):
            return [value[0], _by_name(value[0], value[1], secrets)]
        return [redacted_json(each, secrets) for each in value]
    return _plain(value, secrets) if isinstance(value, str) else value


def redacted_file(name: str, content: bytes, secrets: Sequence[str]) -> bytes:
    """A file of a run directory without secrets; the same bytes where it has none. JSON that is none is text."""
    text = content.decode("utf-8", "surrogateescape")
    if name.endswith(".json"):
        try:
            value = json.loads(text)
            clean = redacted_json(value, secrets)
        except (ValueError, RecursionError):
            pass
        else:
            return content if clean == value else (json.dumps(clean, indent=2) + "\n").encode("ascii")
    clean = redacted_text(text, secrets)
    return content if clean == text else clean.encode("utf-8", "surrogateescape")


def _by_name(name: str, value: Any, secrets: Sequence[str]) -> Any:
    if isinstance(value, str) and value and is_secret_name(name) and name not in _NO_SECRET:
        return REDACTED
    return redacted_json(value, secrets, name)


def _plain(text: str, secrets: Iterable[str]) -> str:
    for secret in secrets:
        text = text.replace(secret, REDACTED)
    return hidden_value(text)
