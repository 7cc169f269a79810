"""The little of HTTP/1.1 that Horovod's rendezvous needs: the first lines of requests and answers. Pure."""

from __future__ import annotations

import re

MAX_HEAD_BYTES = 8192  # Horovod's own requests and our answers have less than 300
MAX_BODY_BYTES = 64 << 20  # a value holds N - 1 addresses of 136 bytes: 9 MB is 65,000 ranks
HEAD_END = b"\r\n\r\n"

_LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*([^\r]*)", re.IGNORECASE)
_NUMBER = re.compile(rb"[0-9]{1,12}\Z")
_STATUS_LINE = re.compile(rb"HTTP/1\.[01] ([1-5][0-9]{2})(?: [^\r\n]*)?\Z")


def request_head(head: bytes) -> tuple[bytes, bytes, int] | None:
    """Method, path, and length of the body, bytes; the length is -1 where it is no number of at most 12 digits.

    Args:
        head: without the empty line at its end.

    Returns:
        None where the first line does not have three parts.
    """
    end = head.find(b"\r\n")
    parts = (head[:end] if end >= 0 else head).split(b" ")
    return (parts[0], parts[1], _length(head)) if len(parts) == 3 else None


def answer_head(head: bytes) -> tuple[int, int] | None:
    """Status, and length of the body as of a request; None where it is not HTTP."""
    status = _STATUS_LINE.match(head.partition(b"\r\n")[0])
    return (int(status.group(1)), _length(head)) if status else None


def _length(head: bytes) -> int:
    found = _LENGTH.search(head)
    if found is None:
        return 0
    text = found.group(1).rstrip(b" \t")
    return int(text) if _NUMBER.match(text) else -1
