"""The little of HTTP/1.1 that Horovod's rendezvous needs: the first lines of requests and answers. Pure."""

from __future__ import annotations

import re
from typing import NamedTuple

MAX_HEAD_BYTES = 8192  # Horovod's own requests and our answers have less than 300
MAX_BODY_BYTES = 64 << 20  # a value holds N - 1 addresses of 136 bytes: 9 MB is 65,000 ranks
HEAD_END = b"\r\n\r\n"

_LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*([^\r]*)", re.IGNORECASE)
_NUMBER = re.compile(rb"[0-9]{1,12}\Z")
_STATUS_LINE = re.compile(rb"HTTP/1\.[01] ([1-5][0-9]{2})(?: [^\r\n]*)?\Z")


class RequestHead(NamedTuple):
    """What a request says before its body.

    Attributes:
        length: of the body, bytes; -1 where the header says no number of at most 12 digits.
    """

    method: bytes
    path: bytes
    length: int


class AnswerHead(NamedTuple):
    """What an answer says before its body; ``length`` as of a request."""

    status: int
    length: int


def request_head(head: bytes) -> RequestHead | None:
    """The head of a request, without the empty line at its end; None where its first line is not of three words."""
    line, _, headers = head.partition(b"\r\n")
    words = line.split(b" ")
    if len(words) != 3:
        return None
    return RequestHead(words[0], words[1], _length(headers) if headers else 0)


def answer_head(head: bytes) -> AnswerHead | None:
    """The head of an answer, without the empty line at its end; None where it is not HTTP."""
    line, _, headers = head.partition(b"\r\n")
    status = _STATUS_LINE.match(line)
    return AnswerHead(int(status.group(1)), _length(headers)) if status else None


def _length(headers: bytes) -> int:
    found = _LENGTH.search(b"\r\n" + headers)
    if found is None:
        return 0
    text = found.group(1).rstrip(b" \t")
    return int(text) if _NUMBER.match(text) else -1
