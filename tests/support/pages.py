"""A page as a browser reads it: its elements with their attributes and texts, by the standard library's parser."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser

VOID = frozenset(("meta", "link", "br", "col", "hr"))


@dataclass
class Element:
    """An element: its tag, attributes, and children (elements and texts) in order."""

    tag: str
    attributes: dict[str, str] = field(default_factory=dict)
    children: list[Element | str] = field(default_factory=list)

    @property
    def text(self) -> str:
        """All text below it."""
        return "".join(child if isinstance(child, str) else child.text for child in self.children)

    def all(self, tag: str = "") -> Iterator[Element]:
        """Every element below it, of one tag or of any."""
        for child in self.children:
            if isinstance(child, Element):
                if tag in ("", child.tag):
                    yield child
                yield from child.all(tag)


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.open = [Element("document")]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        element = Element(tag, {name: value or "" for name, value in attrs})
        self.open[-1].children.append(element)
        if tag not in VOID:
            self.open.append(element)

    def handle_endtag(self, tag: str) -> None:
        closed = self.open.pop()
        assert closed.tag == tag, f"</{tag}> closes <{closed.tag}>"

    def handle_data(self, data: str) -> None:
        self.open[-1].children.append(data)


def parsed(document: str) -> Element:
    """The document; every element is closed, in its order."""
    reader = _Reader()
    reader.feed(document)
    reader.close()
    assert len(reader.open) == 1, [element.tag for element in reader.open]
    return reader.open[0]
