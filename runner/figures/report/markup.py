"""HTML and SVG in which every text is escaped: what is not ``Markup`` cannot become a tag, an attribute or a script."""

from __future__ import annotations

import html
from collections.abc import Iterable

from runner.core.text import printable

_SPACES = "\n\t\N{NARROW NO-BREAK SPACE}"
VOID = frozenset(("br", "col", "hr", "link", "meta"))


class Markup(str):
    """Text that is markup already; only this module and shipped style sheets make it."""

    __slots__ = ()


Child = str | Iterable[str] | None


def text(value: str) -> Markup:
    """``value`` as a person sees it in a terminal: control characters, halves of characters and marks that reorder the
    line are shown by their codes, and all that means something in HTML is escaped.
    """
    return Markup(html.escape(printable(value, _SPACES)))


def tag(name: str, /, *children: Child, **attributes: str | float | None) -> Markup:
    """``<name attributes>children</name>``. An attribute that is None is left out; ``class_`` is ``class``, and other
    ``_`` are ``-``.
    """
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{text(_number(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    return Markup(f"<{name}{written}>" if name in VOID else f"<{name}{written}>{join(*children)}</{name}>")


def join(*children: Child) -> Markup:
    """The children one after another: markup as it is, everything else escaped."""
    pieces: list[str] = []
    for child in children:
        if isinstance(child, Markup):
            pieces.append(child)
        elif isinstance(child, str):
            pieces.append(text(child))
        elif child is not None:
            pieces.append(join(*child))
    return Markup("".join(pieces))


def _number(value: str | float) -> str:
    if isinstance(value, str):
        return value
    return f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)
