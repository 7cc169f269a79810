"""``docs``: the list of pages, a page, and what they say of a word."""

from __future__ import annotations

import re

import pytest

from runner.cli.docs import matches, pages_by_name
from runner.core.errors import Exit
from tests.support.commands import Call

PAGE = """\
# Title

A paragraph about apples,
in two lines.

- an item: pears
- an item: plums and
  apples

```sh
# no heading, apples
```

## Pears

All of it.

More of it.
"""


def test_the_list_has_every_page_and_its_title(call: Call) -> None:
    out = call("docs").out
    assert re.search(r"^  jobs +Jobs: every way to run a program$", out, re.MULTILINE)
    assert re.search(r"^  first-result/alpha +TU Dresden", out, re.MULTILINE)
    assert [name for name in pages_by_name() if f"  {name} " not in out] == []


@pytest.mark.parametrize("name", ["recipes", "recipes/README.md", "docs/recipes/README.md"])
def test_a_page_is_printed_by_its_name_or_path(name: str, call: Call) -> None:
    assert call("docs", name).out == pages_by_name()["recipes"].read_text("utf-8")


def test_a_word_is_found_in_any_case_with_its_section_and_paragraph() -> None:
    ((heading, found),) = matches(PAGE, ("APPLES",))
    assert (heading, found.splitlines()[:2]) == ("Title", ["A paragraph about apples,", "in two lines."])
    assert "pears" not in found and found.endswith("- an item: plums and\n  apples\n```sh\n# no heading, apples\n```")
    for words in (("apples", "plums"), ("plums and apples",)):
        assert list(matches(PAGE, words)) == [("Title", "- an item: plums and\n  apples")]


def test_a_word_is_no_part_of_another_and_pages_that_have_it_most_come_first(call: Call) -> None:
    assert not list(matches(PAGE, ("ear",))) and list(matches(PAGE, ("ear",), whole=False))
    assert list(matches(PAGE, ("pea",))) == [] and list(matches(PAGE, ("pear",)))
    assert re.match(r"recipe-check: ", call("docs", "ddp").out)
    assert "tensorboard" in call("docs", "ensorboard").out  # no page has it as a word


def test_a_heading_with_the_word_shows_its_whole_section() -> None:
    assert list(matches(PAGE, ("pears",))) == [("Title", "- an item: pears"), ("Pears", "All of it.\n\nMore of it.")]


def test_the_word_of_a_verdict_is_answered_by_its_row(call: Call) -> None:
    assert re.match(r"failures: Why a run failed\n- `image-damaged`: .*\n$", call("docs", "image-damaged").out)


def test_what_no_page_has_is_wrong_usage(call: Call) -> None:
    assert "no page has 'qqqq'" in call("docs", "qqqq", code=Exit.USAGE).err
    assert "did you mean 'jobs'" in call("docs", "jobz", code=Exit.USAGE).err
