"""Hides what is secret in texts that others may read: user names and passwords of URLs, values of secret names."""

from __future__ import annotations

import re
from collections.abc import Sequence

# Compiled where they are used: every call of this program comes here, and few have something to hide.
# NAME:PASSWORD@ anywhere, NAME@ behind a scheme (of which a path keeps one slash); not the "@" of a digest
# (pytorch:25.02-py3@sha256:...).
# A password may hold a raw "@": all up to the last one before the path is hidden.
_USER_INFO = r"(?P<scheme>\w:/{1,2})[^/\s'\"]{0,999}@(?!sha256:)|[^/\s'\"@:=]+:[^/\s'\"]{1,999}@(?!sha256:)"
# A name that says that its value is secret: of a variable, an option, a header. Not "tokenizer".
_SECRET_NAME = r"[\w-]*(?:passw|passphrase|secret|token(?!iz)|credential|(?:api|access|private)[-_]?key)[\w-]*"
_VALUE = r"(?:'[^']*'|\"[^\"]*\"|[^\s'\";&|]+)"
_SECRET = rf"(?i:(?P<name>{_SECRET_NAME}\s*[=:]\s*|--?{_SECRET_NAME}\s+|authorization:\s*\w+\s+|\bbearer\s+){_VALUE})"
_SECRET_OPTION = rf"(?i:--?{_SECRET_NAME})"
# A word that is a name and its value, to its end (`--api-key=VALUE`); and what precedes a word that is a script.
_WHOLE = rf"(?is:(?P<name>(?:--?[\w-]+=)?{_SECRET_NAME}=).+)"
_SCRIPT_OPTION = r"-\w*c|--(?:command|wrap|eval)"


def names_user(text: str) -> bool:
    """Whether a URL in it names a user, with a password or not."""
    return re.search(r"://[^/\s\"]*@", text) is not None


def hidden(text: str) -> str:
    """``text`` with ``***@`` for every user name and password."""
    return re.sub(_USER_INFO, lambda found: f"{found['scheme'] or ''}***@", text)


def is_secret_name(name: str) -> bool:
    """Whether the name of a variable says that its value is secret."""
    return re.fullmatch(_SECRET_NAME, name, re.IGNORECASE) is not None


def hidden_command(words: Sequence[str]) -> tuple[str, ...]:
    """A command's words, as ``hidden_value``, and with ``***`` for the values of secret names: ``HF_TOKEN=***``.

    What only its meaning makes secret is not recognised.
    """
    return tuple(_hidden_word(before, word) for before, word in zip(("", *words), words, strict=False))


def _hidden_word(before: str, word: str) -> str:
    if re.fullmatch(_SECRET_OPTION, before):
        return "***"
    is_script = re.fullmatch(_SCRIPT_OPTION, before) is not None
    if not is_script and (whole := re.fullmatch(_WHOLE, word)):
        return f"{whole['name']}***"
    return re.sub(_SECRET, lambda found: f"{found['name']}***", hidden_value(word))


def hidden_value(text: str) -> str:
    """``hidden``, and with ``***`` for tokens and keys of a known form."""
    from runner.core.redact import TOKEN

    return TOKEN.sub("***", hidden(text))
