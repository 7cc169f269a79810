"""The user's working files, copied to another machine: only what differs there is sent.

The sender writes one line of JSON, the files as the receiver shall have them; the receiver answers with a line, the
names that it lacks; the sender writes each of these, its size in eight bytes before it; the receiver answers with
``done``. A file takes its name once it is whole. What was sent before and is not in the list any more is removed; what
else lies there, as runs do, stays. Nothing is read or written through a link.
"""

from __future__ import annotations

import json
import os
import shutil
import stat
import struct
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

from runner.core import files, ownership
from runner.core.errors import RefusedError
from runner.jobs.snapshot_copy import leads_out

MOST_BYTES = 500_000_000
MOST_FILES = 50_000
REFUSED = 3
_SIZE = struct.Struct(">Q")
_BLOCK = 1 << 20
_FIX = "keep data where the site has it, and name what stays here in .gitignore (`git init` first, if need be)"


def described(top: Path, names: Sequence[str]) -> dict[str, str]:
    """name -> ``link TARGET``, or ``x`` or ``-`` (whether it can be executed) and the SHA-256 of its content. What is
    neither a file nor a link within ``top``, or is gone, is left out.

    Raises:
        RefusedError: they are too many or too large to be copied before each job, or one cannot be read.
    """
    left, found = MOST_BYTES, dict[str, str]()
    if len(names) > MOST_FILES:
        raise RefusedError(f"{len(names)} files would be copied to the site", where=str(top), fix=_FIX)
    for name in names:
        if any((top / each).is_symlink() for each in Path(name).parents):
            continue  # the link in the directory's place is sent
        with suppress(FileNotFoundError, NotADirectoryError, files.UnusableFileError):
            status = (top / name).lstat()
            if stat.S_ISLNK(status.st_mode):
                target = str((top / name).readlink())
                if not leads_out(name, target):
                    found[name] = f"link {target}"
            elif stat.S_ISREG(status.st_mode):
                left -= status.st_size
                if left < 0:
                    what = f"more than {MOST_BYTES // 10**6} MB would be copied to the site"
                    raise RefusedError(what, where=str(top / name), fix=_FIX)
                with files.open_below(top, name) as file:
                    found[name] = f"{'x' if status.st_mode & stat.S_IXUSR else '-'}{files.sha256(file)}"
    return found


def send(top: Path, wanted: Mapping[str, str], to: IO[bytes], answers: IO[bytes]) -> int | None:
    """Send what the other side lacks; returns how many files that was, None if the connection was lost."""
    try:
        to.write(json.dumps(wanted).encode() + b"\n")
        to.flush()
        line = answers.readline()
        lacking = [name for name in json.loads(line) if name in wanted] if line.endswith(b"\n") else None
        for name in lacking or ():
            with files.open_below(top, name) as file:
                left = os.fstat(file.fileno()).st_size
                to.write(_SIZE.pack(left))
                while left and (block := file.read(min(left, _BLOCK))):
                    to.write(block)
                    left -= len(block)
                if left:  # it has become shorter: what was announced cannot be sent
                    raise RefusedError("it changed while it was copied", where=str(top / name), fix="try again")
        to.close()
        return len(lacking) if lacking is not None and answers.readline() == b"done\n" else None
    except BrokenPipeError:
        return None


def receive(
    directory: Path, wanted: Mapping[str, str], before: Sequence[str], of: IO[bytes], answers: IO[bytes]
) -> None:
    """The other side. ``before``: what was sent the last time. Raises EOFError: the connection was lost."""
    lacking = []
    for name in {*before} - {*wanted}:
        with suppress(OSError):
            (_folder(directory, name) / Path(name).name).unlink()
    for name, content in wanted.items():
        path = _folder(directory, name) / Path(name).name
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        if content.startswith("link "):
            if not (path.is_symlink() and str(path.readlink()) == content[5:]):
                path.unlink(missing_ok=True)
                path.symlink_to(content[5:])
        elif not _has(path, content):
            lacking.append(name)
    answers.write(json.dumps(lacking).encode() + b"\n")
    answers.flush()
    for name in lacking:
        path = _folder(directory, name) / Path(name).name
        (left,) = _SIZE.unpack(_exactly(of, _SIZE.size))
        with files.replacement(path) as temporary:
            with temporary.open("xb") as file:
                while left:
                    block = _exactly(of, min(left, _BLOCK))
                    file.write(block)
                    left -= len(block)
            temporary.chmod(0o700 if wanted[name].startswith("x") else 0o600)
    answers.write(b"done\n")
    answers.flush()


def _has(path: Path, content: str) -> bool:
    if path.is_symlink() or not path.is_file():
        return False
    if files.sha256(path) != content[1:]:
        return False
    path.chmod(0o700 if content.startswith("x") else 0o600)
    return True


def _folder(directory: Path, name: str) -> Path:
    """The directory of the file, made of real directories only. Raises ValueError: the name leads elsewhere."""
    parts = name.split("/")
    if not {"", ".", ".."}.isdisjoint(parts):
        raise ValueError(name)
    for part in parts[:-1]:
        directory = directory / part
        if directory.is_symlink() or (directory.exists() and not directory.is_dir()):
            directory.unlink()
        directory.mkdir(mode=0o700, exist_ok=True)
    return directory


def _exactly(of: IO[bytes], size: int) -> bytes:
    content = of.read(size)
    if len(content) != size:
        raise EOFError
    return content


def main() -> None:
    """The receiver as a program: its directory, and the one that holds lists of what was sent. Status 1: the connection
    was lost; REFUSED: another user could exchange what would lie there.
    """
    directory, lists = Path(sys.argv[1]).absolute(), Path(sys.argv[2])
    for each in (directory, lists):
        each.mkdir(mode=0o700, parents=True, exist_ok=True)
    if whose := ownership.exchangeable_by(directory):
        print(f"{directory} is {whose}: another user could exchange your files there", file=sys.stderr)
        sys.exit(REFUSED)
    listing = lists / f"{files.key_of(str(directory))[:16]}.json"
    before = json.loads(listing.read_bytes()) if listing.exists() else []
    line = sys.stdin.buffer.readline()
    if not line.endswith(b"\n"):
        sys.exit(1)
    wanted: dict[str, str] = json.loads(line)
    # Both, until all is there: half-way, either may be.
    files.write_private(listing, json.dumps(sorted({*before, *wanted})))
    try:
        receive(directory, wanted, before, sys.stdin.buffer, sys.stdout.buffer)
    except (EOFError, BrokenPipeError):
        sys.exit(1)
    files.write_private(listing, json.dumps(sorted(wanted)))
