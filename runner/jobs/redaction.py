"""Takes a run's secrets out of what is shown of it, or leaves the machine."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any

import msgspec

from runner.core.hide import REDACTED, hidden_command, hidden_value, is_secret, redacted
from runner.jobs.directory import REQUEST, Run
from runner.model.request import RequestRecord
from runner.model.verdict import Verdict
from runner.render import quote_always

_LEAST_LENGTH = 6  # of a value that is looked for everywhere: a shorter one is part of other words
_ORDINARY = r"(?s)/.*|[A-Za-z_]*|\d*|.{1,7}"
_IN_QUOTES = r"(?s)\A\$?(['\"])(.*)\1\Z"
_COMMANDS = frozenset(("program", "argv", "arguments"))
# Of records: what tells one job step from another. It is no key to anything once the job is over.
_NO_SECRET = frozenset(("token",))


def secrets_of(run: Run, least: int = _LEAST_LENGTH) -> tuple[str, ...]:
    """Values of the job's secret variables and arguments, also as scripts and JSON quote them; the longest first.
    Secret are also those that ``--env NAME`` took from the shell, but for paths and plain words; ``least``: characters
    of the shortest.
    """
    if (plan := run.plan) is None:
        return ()
    asked = None
    with suppress(OSError):  # changed since: it says nothing
        asked = run.read(REQUEST, RequestRecord)
    of_shell = asked.request.env_of_shell if asked is not None else ()
    values = [
        value
        for name, value in plan.env
        if is_secret(name, value) or (name in of_shell and not re.fullmatch(_ORDINARY, value))
    ]
    for word, shown in zip(plan.program, hidden_command(plan.program), strict=True):
        values += _hidden_values(word, shown)
    forms = {form for value in values for form in (value, *value.splitlines(), *_quoted(value))}
    return tuple(sorted({form for form in forms if len(form) >= least}, key=len, reverse=True))


def _hidden_values(word: str, shown: str) -> Iterator[str]:
    """What ``***`` stands for in an argument, without quotes around it; of a URL's user the password."""
    first, *parts = shown.split(REDACTED)
    at = len(first)
    for number, part in enumerate(parts, 1):
        end = word.find(part, at) if number < len(parts) else len(word) - len(part)
        if end < at:
            return
        value = word[at:end]
        value = value.partition(":")[2] if part.startswith("@") else re.sub(_IN_QUOTES, r"\2", value)
        yield from (value, value.rstrip(",)}]"))  # what may be of the text around it
        at = end + len(part)


def without_secrets(verdict: Verdict, run: Run) -> Verdict:
    """The same without secrets where it quotes what programs wrote."""
    secrets = secrets_of(run)
    reasons, remarks, log = redacted_json([[*verdict.reasons], [*verdict.remarks], verdict.log], secrets)
    return msgspec.structs.replace(verdict, reasons=tuple(reasons), remarks=tuple(remarks), log=log)


def redacted_text(text: str, secrets: Iterable[str]) -> str:
    """A script or log without secrets."""
    return redacted(_without(text, secrets))[0]


def _without(text: str, secrets: Iterable[str]) -> str:
    for secret in secrets:
        text = text.replace(secret, REDACTED)
    return text


def redacted_json(value: Any, secrets: Sequence[str], key: str = "") -> Any:
    """A JSON value without secrets: by the names of keys and variables, and by its form."""
    if isinstance(value, dict):
        return {name: _by_name(name, each, secrets) for name, each in value.items()}
    if isinstance(value, list):
        if key in _COMMANDS and all(isinstance(each, str) for each in value):
            return [hidden_value(_without(each, secrets)) for each in hidden_command(value)]
        if len(value) == 2 and isinstance(value[0], str):
            return [redacted_json(value[0], secrets), _by_name(value[0], value[1], secrets)]
        return [redacted_json(each, secrets) for each in value]
    return hidden_value(_without(value, secrets)) if isinstance(value, str) else value


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
    if isinstance(value, str) and value and name not in _NO_SECRET and is_secret(name, value):
        return REDACTED
    return redacted_json(value, secrets, name)
