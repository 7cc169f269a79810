"""What leaves this machine in a bundle holds no secret: values of secret names, tokens, users in URLs. Pure.

A file in which nothing looks like a secret is kept byte by byte, so that hashes of it hold.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from runner.core.hide import REDACTED, hidden_command, hidden_value, is_secret_name, redacted
from runner.model.plan import Plan
from runner.render import quote_always

_LEAST_LENGTH = 6  # of a value that is looked for everywhere: a shorter one is part of other words
_COMMANDS = frozenset(("program", "argv", "arguments"))
# Of records: what tells one job step from another. It is no key to anything once the job is over.
_NO_SECRET = frozenset(("token",))


def secrets_of(plan: Plan) -> tuple[str, ...]:
    """Values of the job's secret variables and arguments, also as scripts and JSON quote them; the longest first."""
    values = [value for name, value in plan.env if is_secret_name(name)]
    values += [
        word.removeprefix(before)  # all of it, or what follows --api-key=
        for word, shown in zip(plan.program, hidden_command(plan.program), strict=True)
        if shown.endswith(REDACTED) and word.startswith(before := shown.removesuffix(REDACTED))
    ]
    forms = {form for value in values for form in (value, *value.splitlines(), *_quoted(value))}
    return tuple(sorted({form for form in forms if len(form) >= _LEAST_LENGTH}, key=len, reverse=True))


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


def _quoted(value: str) -> Iterator[str]:
    """A value as it stands between quotes: in the job's script, in a command that a shell or Python shows, in JSON."""
    yield quote_always(value)[1:-1]
    yield shlex.quote(value)[1:-1] if shlex.quote(value) != value else value
    yield repr(value)[1:-1]
    yield json.dumps(value)[1:-1]
    yield json.dumps(value, ensure_ascii=False)[1:-1]


def _by_name(name: str, value: Any, secrets: Sequence[str]) -> Any:
    if isinstance(value, str) and value and is_secret_name(name) and name not in _NO_SECRET:
        return REDACTED
    return redacted_json(value, secrets, name)


def _plain(text: str, secrets: Iterable[str]) -> str:
    for secret in secrets:
        text = text.replace(secret, REDACTED)
    return hidden_value(text)
