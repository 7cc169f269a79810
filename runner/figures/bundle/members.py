"""Which files of a run directory a bundle has: all that its verdict is made from, and where the run comes from."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

# The user's uncommitted changes (code.diff), the program and the ranks' output stay where they are.
_FILES = frozenset(
    (
        "plan.json", "job.sh", "job.json", "provenance.json", "command.json", "code.json", "versions", "nodes",
        "exit.json", "ended.json", "cancelled.json", "result.json", "verdict.json", "logs/batch.err",
    )
)  # fmt: skip
_RECORD = re.compile(r"ranks/(0|[1-9][0-9]{0,8})\.[a-z-]{1,20}\.json\Z", re.ASCII)
_NCCL = re.compile(r"nccl/[A-Za-z0-9_-][A-Za-z0-9._-]{0,95}\.log\Z", re.ASCII)
_LEAST = frozenset(("plan.json", "job.sh", "job.json", "verdict.json"))
_NCCL_BYTES = 1 << 19  # of each log, as the verdict reads it
_ERROR_BYTES = 50_000  # of the end of the script's log, as the verdict reads it


def is_member(name: str) -> bool:
    """Whether a bundle may have a run's file of this name."""
    return name in _FILES or _RECORD.match(name) is not None or _NCCL.match(name) is not None


def missing(names: set[str]) -> str:
    """The first file that every run has and this one has not; empty if it has all."""
    return min(_LEAST - names, default="")


def files_of(run: Path) -> Iterator[tuple[str, bytes]]:
    """The files of a run directory that go into a bundle, in the order of their names; of logs what the verdict reads.

    Raises:
        OSError: one cannot be read.
    """
    names = [name for name in _FILES if (run / name).is_file()]
    for folder in ("ranks", "nccl"):
        names += [f"{folder}/{path.name}" for path in run.glob(f"{folder}/*") if path.is_file()]
    for name in sorted(filter(is_member, names)):
        content = (run / name).read_bytes()
        if name.startswith("nccl/"):
            content = _whole_lines(content, content[:_NCCL_BYTES])
        elif name == "logs/batch.err":
            content = _whole_lines(content, content[-_ERROR_BYTES:])
        yield name, content


def _whole_lines(content: bytes, part: bytes) -> bytes:
    """The beginning or end of a log without the line that was cut: in a part of it no secret would be known."""
    if len(part) == len(content):
        return part
    return part[: part.rfind(b"\n") + 1] if content.startswith(part) else part[part.find(b"\n") + 1 :]
