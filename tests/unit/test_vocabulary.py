"""The project speaks plain English: no idiom of its own in what a person reads, and no private word as a name."""

import re
import subprocess
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
AREAS = ("runner", "recipes", "containers", "benchmarks", "tests", "docs")
IDIOMS = re.compile(
    r"\bmend(s|ed|ing)?\b|\btold\b|\bnobody\b|\bsomebody('s)?\b|\bcan(not|'t) be had\b|\bbelongs? into\b|"
    r"\ba thing of\b|"
    r"\bis itself\b|\bamiss\b|\bof (one|its|the user)'s own\b",
    re.IGNORECASE,
)
DEFINITION = re.compile(r" *(?:def|class) ([A-Za-z]\w*)[(:\[]")
# Whole names, and parts of names between underscores, that say nothing to a newcomer.
WHOLE = frozenset(
    {
        *("told", "said", "word", "words", "found", "ends", "uses", "completed", "filled", "absent", "held", "parts"),
        *("some", "bad", "odd", "order", "claims", "claimed", "named", "listed", "wanted", "made", "shown", "seen"),
        "there",
    }
)
PARTS = frozenset({"mend", "mends", "told", "said", "asked", "doomed", "alone"})


def files(area: str, suffix: str) -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "-z", area], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    paths = [ROOT / name for name in listed.split("\0") if name.endswith(suffix)]
    return [path for path in paths if path.is_file()]


def prose(path: Path) -> Iterator[tuple[int, str]]:
    """Comments and string literals of a Python file, with their lines; of any other file all lines."""
    text = path.read_text("utf-8", "replace")
    if path.suffix != ".py":
        yield from enumerate(text.splitlines(), 1)
    if path.suffix != ".py" or not IDIOMS.search(text):
        return
    with path.open("rb") as file:
        for token in tokenize.tokenize(file.readline):
            if token.type in (tokenize.COMMENT, tokenize.STRING):
                yield token.start[0], token.string


def public_names(path: Path) -> Iterator[tuple[int, str]]:
    """Modules, classes, and functions or methods without a leading underscore."""
    yield 1, path.stem
    for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
        if match := DEFINITION.match(line):
            yield number, match[1]


@pytest.mark.parametrize("area", [*AREAS, "README.md", "CONTRIBUTING.md", "Makefile"])
def test_what_a_person_reads_is_plain_english(area: str) -> None:
    pages = [
        path for suffix in (".py", ".md", ".sh", ".yaml", "Makefile", "Dockerfile") for path in files(area, suffix)
    ]
    assert pages, f"no file in {area}"
    found = [
        f"{path.relative_to(ROOT)}:{line}: {match[0]!r} in {text.strip()[:100]!r}"
        for path in pages
        if path != Path(__file__).resolve() and path.name != "CHANGELOG.md"
        for line, text in prose(path)
        if (match := IDIOMS.search(text))
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("area", ["runner", "recipes", "containers", "benchmarks", "tests"])
def test_names_are_those_of_the_field(area: str) -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}: {name}"
        for path in files(area, ".py")
        for line, name in public_names(path)
        if (name in WHOLE and not name.startswith("test_")) or not PARTS.isdisjoint(name.lower().split("_"))
    ]
    assert not found, "\n".join(found)
