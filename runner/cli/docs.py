"""``docs``: the pages that the program brings: their list, one of them, or what they say of a word."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import click

from runner.cli.options import by_shell
from runner.core.errors import UsageError
from runner.core.invocation import PROGRAM
from runner.core.paths import share
from runner.core.text import instead

_INDEX = "README"
# Between paragraphs, items and rows: each is shown alone where it has the word.
_APART = re.compile(r"\n\s*\n|\n(?= *(?:- |\d+\. |\|))")


@click.command()
@click.argument("words", nargs=-1, metavar="[WORD]...", shell_complete=by_shell("pages"))
def command(words: tuple[str, ...]) -> int:
    """List the pages, print one by its name, or what all of them say of WORD: docs image-damaged.

    Of several WORDs each must be there. A heading that has them shows its whole section.
    """
    pages = pages_by_name()
    if not words:
        click.echo(f"Pages, in {share('docs')}:\n")
        for name, page in pages.items():
            click.echo(f"  {name:<28}{_title(page)}")
        click.echo(f"\n{PROGRAM} docs NAME prints one, {PROGRAM} docs WORD what they say of a word.")
        return 0
    name = words[0].removeprefix("docs/").removesuffix(".md").removesuffix(f"/{_INDEX}")
    if len(words) == 1 and name in pages:
        click.echo(pages[name].read_text("utf-8").rstrip("\n"))
        return 0
    blank = ""
    for name, page in pages.items():
        for heading, lines in matches(page.read_text("utf-8"), words):
            click.secho(f"{blank}{name}: {heading}", bold=True)
            click.echo(lines)
            blank = "\n"
    if not blank:
        fix = instead(words[0], pages, "fewer or other words, or a part of one")
        raise UsageError(f"no page has {' and '.join(map(repr, words))}", where="docs", fix=fix)
    return 0


def pages_by_name() -> dict[str, Path]:
    """Every page by the name that ``docs`` takes: its path without ``.md``; of a folder's README that of the folder."""
    root = share("docs")
    paths = {path.relative_to(root).with_suffix("").as_posix(): path for path in sorted(root.rglob("*.md"))}
    return {name.removesuffix(f"/{_INDEX}"): path for name, path in paths.items()}


def matches(text: str, words: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """(heading, the paragraphs that have all words) of each section that has some; all of them if the heading has."""
    for heading, body in _sections(text):
        if _has(heading, words):
            yield heading, body
        elif found := [part.strip("\n") for part in _APART.split(body) if _has(part, words)]:
            yield heading, "\n".join(found)


def _has(text: str, words: tuple[str, ...]) -> bool:
    line = " ".join(text.split()).casefold()
    return all(" ".join(word.split()).casefold() in line for word in words)


def _title(page: Path) -> str:
    return next(_sections(page.read_text("utf-8")))[0]


def _sections(text: str) -> Iterator[tuple[str, str]]:
    """(heading, the lines below it) of each section; a ``#`` in a block of code heads none."""
    heading, lines, fenced = "", list[str](), False
    for line in text.splitlines():
        fenced ^= line.startswith("```")
        if not fenced and (head := re.match(r"#+ (.*)", line)):
            if heading:
                yield heading, "\n".join(lines).strip("\n")
            heading, lines = head[1], []
        else:
            lines.append(line)
    yield heading, "\n".join(lines).strip("\n")
