"""A hook of mkdocs: the pages are GitHub's Markdown; Python-Markdown wants more blank lines and indents in lists."""

import re
from typing import Any

_ITEM = re.compile(r"( *)([-*]|\d+\.) +(?=\S)")
_INDENT = 4  # of what belongs to an item, for Python-Markdown


def on_page_markdown(markdown: str, **_more: Any) -> str:
    """What mkdocs calls with the text of each page."""
    return for_python_markdown(markdown)


def for_python_markdown(markdown: str) -> str:
    """A blank line before each list, and four columns for what belongs to an item; GitHub aligns it with the text."""
    lines: list[str] = []
    depth = 0  # columns of the text of the item that this line belongs to, 0 outside of lists
    fenced = loose = False  # loose: the item has several paragraphs
    for line in markdown.splitlines():
        fenced ^= line.startswith("```")
        item = None if fenced else _ITEM.match(line)
        indent = len(line) - len(line.lstrip())
        if item and (not item[1] or (depth and len(item[1]) < _INDENT)):
            if lines and lines[-1].strip() and (loose or not depth):
                lines.append("")
            depth, loose = len(item[0]), False
            indent = _INDENT if item[1] else 0
        elif line.strip() and depth:
            loose |= not lines[-1].strip()
            if indent >= depth:
                indent += _INDENT - depth
            elif not indent and not lines[-1].strip():
                depth = 0
        lines.append(" " * indent + line.lstrip())
    return "\n".join(lines) + "\n"
