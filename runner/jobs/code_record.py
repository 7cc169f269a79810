"""The user's code at submission: which commit, what differs from it, and that difference as text without secrets."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from msgspec.structs import replace

from runner.core import files
from runner.core.hide import redacted
from runner.jobs import git
from runner.jobs.git import GitError, Repository
from runner.jobs.run import CODE_DIFF, Run
from runner.model.job import CodeRecord

MOST_BYTES = 1_000_000  # of the kept difference
_MOST_NAMES = 1000
_MOST_WORDS = 100  # of a command line that are looked at
_SOURCE = re.compile(r"\.(py|sh|pl|R|jl)\Z")
_FILE = re.compile(rb"^diff --git ", re.MULTILINE)
_ESCAPE = re.compile(rb"\\([0-7]{3}|.)", re.DOTALL)  # of names in quotes, as in C
_LETTERS = {b"a": b"\a", b"b": b"\b", b"t": b"\t", b"n": b"\n", b"v": b"\v", b"f": b"\f", b"r": b"\r"}


@dataclass(frozen=True)
class Change:
    """One file of a difference: its name, and its part of the text."""

    name: str
    text: bytes

    @property
    def is_binary(self) -> bool:
        """Whether git only says that it differs."""
        return b"\nBinary files " in self.text


@dataclass(frozen=True)
class Kept:
    """What is kept of a difference; ``text`` is without secrets."""

    text: str
    binary: tuple[str, ...]
    too_long: tuple[str, ...]
    redacted: int


def code_record(program: Sequence[str], directory: Path, *, with_diff: bool) -> tuple[CodeRecord, str]:
    """The record of the code that a job runs, and the difference to keep. Never fails: what is unknown is said.

    Args:
        program: the argument list whose files are looked for; empty for a recipe.
        directory: where it starts.
        with_diff: the difference is kept.
    """
    try:
        repository, file = _code_of(program, directory)
        if repository is None:
            return CodeRecord(problem="the program is in no git repository"), ""
    except (GitError, OSError, RuntimeError) as error:
        return CodeRecord(problem=str(error)), ""
    base = CodeRecord(repository=str(repository.top), commit=repository.commit, branch=repository.branch)
    try:
        with git.reader(repository) as reader:
            answer = reader.diff()
            untracked = "" if file is None or reader.tracked(file) else str(file.relative_to(repository.top))
    except (GitError, OSError) as error:
        return replace(base, problem=f"what differs from the commit is unknown: {error}"), ""
    changes = tuple(changes_of(answer))
    if len(answer) >= git.MOST_BYTES:
        return replace(base, dirty=True, problem="what differs from the commit is too much to be read"), ""
    kept = keep(changes, MOST_BYTES)
    record = replace(
        base,
        dirty=bool(changes),
        changed=tuple(change.name for change in changes)[:_MOST_NAMES],
        binary=kept.binary[:_MOST_NAMES],
        too_long=kept.too_long[:_MOST_NAMES],
        untracked=untracked,
    )
    if not with_diff or not kept.text:
        return record, ""
    return replace(record, redacted=kept.redacted, diff_kept=True), kept.text


def recorded(first: Run, *, with_diff: bool) -> tuple[CodeRecord | None, str]:
    """The same of a run whose code is run again: what was recorded then."""
    record = first.code
    if record is None or not record.diff_kept:
        return record, ""
    try:
        text = files.read_bytes(first.path / CODE_DIFF).decode("utf-8", "surrogateescape") if with_diff else ""
    except (OSError, files.UnusableFileError):
        text = ""
    return (record, text) if text else (replace(record, redacted=0, diff_kept=False), "")


def changes_of(answer: bytes) -> Iterator[Change]:
    """The files of git's difference. One of which only the times differ has a head alone, and is none."""
    starts = [found.start() for found in _FILE.finditer(answer)]
    for start, end in pairwise([*starts, len(answer)]):
        head, _, rest = answer[start:end].partition(b"\n")
        if rest:
            yield Change(_name(head.removeprefix(b"diff --git ")), answer[start:end])


def keep(changes: Iterable[Change], most: int) -> Kept:
    """The changes of text that fit into ``most`` bytes, without secrets; a long one does not crowd out the others."""
    texts: list[bytes] = []
    binary, too_long = [], []
    left = most
    for change in changes:
        if change.is_binary:
            binary.append(change.name)
        elif len(change.text) > left:
            too_long.append(change.name)
        else:
            texts.append(change.text)
            left -= len(change.text)
    text, count = redacted(b"".join(texts).decode("utf-8", "surrogateescape"))
    return Kept(text, tuple(binary), tuple(too_long), count)


def _name(head: bytes) -> str:
    """Of ``a/NAME b/NAME``, both in quotes if one is: without renames, the two are alike."""
    second = head[len(head) // 2 + 1 :]
    if second.startswith(b'"'):
        second = _ESCAPE.sub(_character, second[1:-1])
    return os.fsdecode(second.removeprefix(b"b/"))


def _character(escape: re.Match[bytes]) -> bytes:
    code = escape[1]
    return bytes([int(code, 8)]) if code.isdigit() else _LETTERS.get(code, code)


def _code_of(program: Sequence[str], directory: Path) -> tuple[Repository | None, Path | None]:
    """The repository of the first source file among the words that is in one, and the file; else of the directory.

    Other files may be the interpreter, in an environment within another repository, or data.
    """
    for word in program[:_MOST_WORDS]:
        file = directory / word
        if is_source(word) and _is_file(file):
            repository = git.repository_of(file.parent)
            if repository is not None:
                return repository, file.parent.resolve() / file.name
    return git.repository_of(directory), None


def is_source(word: str) -> bool:
    """Whether an argument looks like a file of the program's source."""
    return _SOURCE.search(word) is not None and "\0" not in word and not word.startswith("-")


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:
        return False
