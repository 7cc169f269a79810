"""What the state directory keeps of runs, where no job's container is given a place: by it a later command knows what
was written here, and whether it was changed.
"""

from __future__ import annotations

import hmac
import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from runner.core import files, paths


def seal(text: str) -> str:
    """What only this user can write beside ``text``; empty where there is no key."""
    try:
        key = files.read_bytes(_key())
    except OSError:
        return ""
    return hmac.new(key, text.encode("utf-8", "surrogateescape"), "sha256").hexdigest()


def judgements() -> Path:
    """What runs were made of when they were first judged, a file for each; and the last line of each study's log."""
    return paths.state("judged")


def orders() -> Path:
    """The hashes of each run's plan, request, command line and submission, as they were written; a file for each."""
    return paths.state("orders")


def note_order(run_id: str, name: str, content: bytes) -> None:
    """Keep the hash of an order that is about to be written. Raises OSError."""
    files.make_closed(orders())
    with open(orders() / run_id, "a", encoding="ascii", opener=_private) as file:
        file.write(_line(name, files.sha256(content)))


def known_orders(run_id: str) -> list[str]:
    """SHA-256 and name of each that was written here; none of a copy or of an older version."""
    with suppress(OSError):
        return files.read_bytes(orders() / run_id).decode("ascii", "replace").splitlines(keepends=True)
    return []


def is_changed(name: str, digest: str, known: Iterable[str]) -> bool:
    """Whether an order of this SHA-256 is none of the ``known_orders``; False where none of this name is known."""
    of_name = [line for line in known if line.endswith(_line(name))]
    return bool(of_name) and _line(name, digest) not in of_name


def _line(name: str, digest: str = "") -> str:
    """As sha256sum(1) writes it; without ``digest`` its end."""
    return f"{digest}  {name}\n"


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW, files.PRIVATE)


def keep_judgement(name: str, text: str) -> None:
    """Keep a file of ``judgements``, where it can be."""
    with suppress(OSError):
        files.make_closed(judgements())
        files.write_private(judgements() / name, text)


def _key() -> Path:
    """A secret of this user, by which is known what was written here."""
    return paths.state("verdict.key")


def make_key() -> None:
    """Make it where there is none. Raises OSError."""
    path = _key()
    if path.exists():
        return
    files.make_closed(path.parent)
    made = files.temporary_name(path)
    files.write_private(made, os.urandom(32).hex())
    try:
        os.link(made, path)
    except FileExistsError:  # another process was first: there is one key
        made.unlink()
    except OSError:  # a file system without hard links
        made.rename(path)
    else:
        made.unlink()
