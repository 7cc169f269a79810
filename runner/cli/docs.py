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
_LAST = ("README", "proofs", "architecture")  # what says least of how something is done
_SHORT = 4  # letters of a word that stands for itself alone
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
    texts = {name: page.read_text("utf-8") for name, page in pages.items()}
    whole = any(_has(text, words) for text in texts.values())
    most_first = sorted(texts, key=lambda name: (name in _LAST, -_times(texts[name], words)))
    blank = ""
    for name in most_first:
        for heading, lines in matches(texts[name], words, whole=whole):
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


def matches(text: str, words: tuple[str, ...], *, whole: bool = True) -> Iterator[tuple[str, str]]:
    """(heading, the paragraphs that have all words) of each section that has some; all of them if the heading has.
    ``whole``: as words, or their beginnings, not within others.
    """
    for heading, body in _sections(text):
        if _has(heading, words, whole=whole):
            yield heading, body
        elif found := [part.strip("\n") for part in _APART.split(body) if _has(part, words, whole=whole)]:
            yield heading, "\n".join(found)


def _has(text: str, words: tuple[str, ...], *, whole: bool = True) -> bool:
    line = " ".join(text.split())
    return all(re.search(_pattern(word, whole=whole), line, re.IGNORECASE) for word in words)


def _times(text: str, words: tuple[str, ...]) -> int:
    line = " ".join(text.split())
    return min(len(re.findall(_pattern(word), line, re.IGNORECASE)) for word in words)


def _pattern(word: str, *, whole: bool = True) -> str:
    """Of a word as a reader means it: CI is no part of a decision, ``scal`` is the beginning of scaling."""
    text = re.escape(" ".join(word.split()))
    if not whole:
        return text
    after = r"(?![^\W_])" if len(word) < _SHORT else ""
    return rf"(?<![^\W_]){text}{after}"


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
