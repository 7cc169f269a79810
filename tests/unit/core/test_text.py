"""Words and numbers for people: one form of each kind; nothing of others changes a terminal."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from runner.core import text
from runner.core.text import coloured, counted, duration, first_of, gpus_text, plain, printable, shape_text

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


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[1;31mred\x1b[m \x1b[38;5;208mo\x1b[48;2;1;2;3mx", None),
        ("\x1b[38:2::1:2:3mx\x1b[01;34m\tdirectory\x1b[0m", None),
        *((f"a\x1b{code}b", f"a\\x1b{code}b") for code in ("[8m", "[1;8m", "[2J", "[A", "[?25l", "]0;t", "c", "[31")),
        ("\x9b31m\u202e\x08", "\\x9b31m\\u202e\\x08"),
    ],
)
def test_colours_reach_a_terminal_and_end_and_nothing_else_does(text: str, shown: str | None) -> None:
    assert coloured(text) == (f"{text}\x1b[0m" if shown is None else shown)


def test_one_is_no_plural() -> None:
    assert [shape_text(8, 2, 8), shape_text(1, 1, 1, "torchrun")] == ["8 ranks on 2 nodes", "1 rank on 1 node"]
    assert shape_text(8, 2, 2, "torchrun") == "8 GPUs on 2 nodes, 2 starts of torchrun"
    assert shape_text(4, 1, 1) == "4 GPUs on 1 node, 1 start"
    assert [gpus_text(count) for count in (0, 1, 2)] == ["0 GPUs", "1 GPU", "2 GPUs"]
    assert [counted(2, noun) for noun in ("node", "launch", "process", "study")] == [
        "2 nodes", "2 launches", "2 processes", "2 studies",
    ]  # fmt: skip
    assert counted(1, "launch") == "1 launch"


def test_escaping_and_plurals_are_in_one_place() -> None:
    copies = [
        f"{path.relative_to(ROOT)}: {match[0]}"
        for path in sorted((ROOT / "runner").rglob("*.py"))
        if path != ROOT / "runner/core/text.py"
        for match in COPIES.finditer(path.read_text("utf-8"))
    ]
    assert copies == []


@pytest.mark.parametrize(
    ("elapsed_s", "shown"),
    [
        (-3, "0 s"), (0.9, "0 s"), (59, "59 s"), (60, "1 min"), (1200, "20 min"), (1259, "20 min 59 s"),
        (3600, "1 h"), (5400, "1 h 30 min"), (3605, "1 h"), (90_600, "1 d 1 h"), (86_400 * 3, "3 d"),
    ],
)  # fmt: skip
def test_a_duration_has_two_units_at_most(elapsed_s: float, shown: str) -> None:
    assert duration(elapsed_s) == shown


FORMS = {
    "small rate": (text.rate(8.406), "8.41"),
    "rate": (text.rate(148.25), "148.2"),
    "rate of a large model": (text.rate(0.0625), "0.0625"),
    "rate of a day": (text.rate(0.00149), "0.00149"),
    "large rate": (text.rate(36_900.4), "36900"),
    "no rate": (text.rate(0.0), "0"),
    "percent": (text.percent(0.924), "92.4 %"),
    "loss": (text.percent(-0.0312), "-3.1 %"),
    "a low efficiency": (text.efficiency(0.002308), "0.231 %"),
    "efficiency": (text.efficiency(0.9244), "92.4 %"),
    "a share that rounds to 0": (text.percent(-0.0001, signed=True), "0.0 %"),
    "change": (text.change(0.018), "+1.80 %"),
    "interval": (text.with_span(0.9, 0.85, 0.95), "90.0 % (85.0 % to 95.0 %)"),
    "interval of rates": (text.span(910.0, 1090.0, text.rate), "910.0 to 1090"),
    "half an interval": (text.with_span(0.9, 0.85, None), "90.0 %"),
    "short": (text.seconds(0.0412), "41.2 ms"),
    "long": (text.seconds(3.214), "3.21 s"),
    "a second": (text.seconds(0.9996), "1 s"),
    "long enough": (text.seconds(1234.5), "1234 s"),
    "age": (" ".join(map(text.age, (-1, 59.9, 60, 719, 3 * 3600, 2 * 86_400))), "0 s 59 s 1 min 11 min 3 h 2 d"),
    "few": (first_of(("a", "b"), 2), "a, b"),
    "many": (first_of(tuple("abcde"), 2, "; "), "a; b and 3 more"),
}


@pytest.mark.parametrize("case", FORMS)
def test_each_kind_of_number_has_one_form(case: str) -> None:
    made, wanted = FORMS[case]
    assert plain(made) == wanted


def test_a_number_does_not_break_in_a_page() -> None:
    assert " " not in text.percent(-0.5) + text.rate(1e6)
