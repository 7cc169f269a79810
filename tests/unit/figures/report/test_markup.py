"""Nothing that is no markup becomes markup."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.figures.report.picture import Markup, escaped, join, tag
from tests.support.pages import parsed

HOSTILE = (
    "<script>alert(1)</script>",
    "\" onload='x'",
    "&lt;",
    "a\x00b\x1b[2J",
    "\u202egnp",
    "\udcff",
    "日本 ñ",
    "</style>",
)


@given(st.text())
def test_any_text_is_one_text_and_any_attribute_one_attribute(value: str) -> None:
    page = parsed(tag("p", value, title=value, data_x=value))
    (element,) = page.children
    assert not isinstance(element, str)
    assert (element.tag, set(element.attributes)) == ("p", {"title", "data-x"})
    assert all(isinstance(child, str) for child in element.children)


@pytest.mark.parametrize("value", HOSTILE)
def test_hostile_text_is_shown_and_does_nothing(value: str) -> None:
    made = tag("b", value)
    assert len(list(parsed(made).all())) == 1
    assert "<script" not in made
    assert made.encode("utf-8")
    assert all(each.isprintable() for each in made)


def test_control_characters_are_shown_by_their_codes() -> None:
    assert escaped("a\x1bb\u202ec\udcff") == "a\\x1bb\\u202ec\\udcff"


def test_markup_stays_what_it_is_and_numbers_are_short() -> None:
    assert join(Markup("<b>"), "<b>", None, [Markup("<i>"), "x"]) == "<b>&lt;b&gt;<i>x"
    assert tag("line", x1=1.0, y1=2.345, class_="a", d=None) == '<line x1="1" y1="2.35" class="a"></line>'
