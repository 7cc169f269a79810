"""Hides user names and passwords of URLs and image references, so that no message shows them."""

from __future__ import annotations

import re

# NAME:PASSWORD@ anywhere, NAME@ behind a scheme (of which a path keeps one slash); not the "@" of a digest
# (pytorch:25.02-py3@sha256:...).
_USER_INFO = re.compile(r"(?P<scheme>\w:/{1,2})[^/\s'\"@]*@|[^/\s'\"@:=]+:[^/\s'\"@]+@(?!sha256:)")


def names_user(text: str) -> bool:
    """Whether a URL in it names a user, with a password or not."""
    return re.search(r"://[^/\s\"]*@", text) is not None


def hidden(text: str) -> str:
    """``text`` with ``***@`` for every user name and password."""
    return _USER_INFO.sub(lambda found: f"{found['scheme'] or ''}***@", text)
