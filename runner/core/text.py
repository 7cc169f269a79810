"""Words for people: text of others without control characters, numbers with their nouns. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence


def printable(text: str, keep: str = "") -> str:
    """``text`` with what is no printable character escaped: control characters, marks of the direction of writing.

    What a record, a log, a file or a host's name holds can then change neither a terminal nor the order of a line.

    Args:
        keep: characters that stay, such as the end of a line.
    """
    if text.isprintable():
        return text
    return "".join(
        each if each in keep or each.isprintable() else each.encode("unicode_escape").decode("ascii") for each in text
    )


def plain(text: str, keep: str = "") -> str:
    """``text`` for a terminal: printable, and numbers as they are typed: ``36900``, ``-3.1 %``."""
    ungrouped = re.sub("(?<=[0-9])\N{NARROW NO-BREAK SPACE}(?=[0-9])", "", text)
    return printable(ungrouped.replace("\N{NARROW NO-BREAK SPACE}", " ").replace("\N{MINUS SIGN}", "-"), keep)


def counted(number: int, noun: str) -> str:
    """``1 node``, ``16 nodes``, ``3 launches``."""
    plural = f"{noun}es" if noun.endswith(("ch", "s")) else f"{noun[:-1]}ies" if noun.endswith("dy") else f"{noun}s"
    return f"{number} {noun if number == 1 else plural}"


def gpus_text(gpus: int) -> str:
    """``1 GPU``, ``16 GPUs``."""
    return counted(gpus, "GPU")


def first_of(names: Sequence[str], most: int, separator: str = ", ") -> str:
    """``a, b, c``; of more than ``most`` the first: ``a, b and 3 more``."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return f"{separator.join(names[:most])}{more}"


def instead(wrong: str, names: Iterable[str], otherwise: str) -> str:
    """``did you mean 'x'?``, or ``otherwise`` where no name is near."""
    near = nearest(wrong, names)
    return f"did you mean {near!r}?" if near else otherwise


def nearest(name: str, others: Iterable[str], *, least: float = 0.6) -> str:
    """The most similar of the others; empty where none is as similar as ``least``, a ratio of difflib."""
    import difflib  # every call of this program comes here, and few have something to suggest

    return next(iter(difflib.get_close_matches(name, list(others), n=1, cutoff=least)), "")
