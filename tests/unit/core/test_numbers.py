"""Numbers for people: one form of each kind."""

from __future__ import annotations

import pytest

from runner.core import numbers
from runner.core.text import first_of, plain

FORMS = {
    "small rate": (numbers.rate(8.406), "8.41"),
    "rate": (numbers.rate(148.25), "148.2"),
    "large rate": (numbers.rate(36_900.4), "36900"),
    "no rate": (numbers.rate(0.0), "0"),
    "percent": (numbers.percent(0.924), "92.4 %"),
    "loss": (numbers.percent(-0.0312), "-3.1 %"),
    "a share that rounds to 0": (numbers.percent(-0.0001, signed=True), "0.0 %"),
    "change": (numbers.change(0.018), "+1.80 %"),
    "interval": (numbers.with_span(0.9, 0.85, 0.95), "90.0 % (85.0 % to 95.0 %)"),
    "interval of rates": (numbers.span(910.0, 1090.0, numbers.rate), "910.0 to 1090"),
    "half an interval": (numbers.with_span(0.9, 0.85, None), "90.0 %"),
    "short": (numbers.seconds(0.0412), "41.2 ms"),
    "long": (numbers.seconds(3.214), "3.21 s"),
    "age": (" ".join(map(numbers.age, (-1, 45, 719, 3 * 3600, 2 * 86_400))), "0 s 45 s 11 min 3 h 2 d"),
    "few": (first_of(("a", "b"), 2), "a, b"),
    "many": (first_of(tuple("abcde"), 2, "; "), "a; b and 3 more"),
}


@pytest.mark.parametrize("case", FORMS)
def test_each_kind_of_number_has_one_form(case: str) -> None:
    made, wanted = FORMS[case]
    assert plain(made) == wanted


def test_a_number_does_not_break_in_a_page() -> None:
    assert " " not in numbers.percent(-0.5) + numbers.rate(1e6)
