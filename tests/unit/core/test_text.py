"""Words for people: nothing of others changes a terminal, and one of a thing is no plural."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from runner.core.text import counted, gpus_text, printable

ROOT = Path(__file__).resolve().parents[3]
COPIES = re.compile(r"unicode_escape|\} \w+\{'' if [^}]* == 1 else 's'\}|\"1 (?:node|job|launch|run|host)\" if")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain words, \N{NO-BREAK SPACE}é", "plain words, \\xa0é"),
        ("\x1b[2J", "\\x1b[2J"),
        ("a\u202eb\u2066c\u200fd", "a\\u202eb\\u2066c\\u200fd"),
        ("half \udcff of one", "half \\udcff of one"),
        ("two\nlines", "two\\nlines"),
    ],
)
def test_what_is_no_printable_character_is_escaped(text: str, shown: str) -> None:
    assert printable(text) == shown
    assert printable("two\nlines", keep="\n") == "two\nlines"


def test_one_is_no_plural() -> None:
    assert [gpus_text(count) for count in (0, 1, 2)] == ["0 GPUs", "1 GPU", "2 GPUs"]
    assert [counted(2, noun) for noun in ("node", "launch", "process", "study")] == [
        "2 nodes", "2 launches", "2 processes", "2 studies",
    ]  # fmt: skip
    assert counted(1, "launch") == "1 launch"


def test_escaping_and_plurals_are_in_one_place() -> None:
    found = [
        f"{path.relative_to(ROOT)}: {match[0]}"
        for path in sorted((ROOT / "runner").rglob("*.py"))
        if path != ROOT / "runner/core/text.py"
        for match in COPIES.finditer(path.read_text("utf-8"))
    ]
    assert found == [], found
