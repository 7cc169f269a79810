"""What is written to a recipe file is read back as the same recipe."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runner.core.strict_yaml import parse
from runner.model.request import Recipe
from runner.preparation.new_recipe import draft
from runner.preparation.program_source import ProgramOption

# As Linux passes arguments, but for bytes that are no UTF-8.
WORDS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=12)


def read_back(recipe: Recipe, *options: ProgramOption) -> Recipe:
    return parse(draft(recipe, options).encode(), Recipe, "recipe.yaml")


@settings(max_examples=40, deadline=None)
@given(st.lists(WORDS, min_size=1, max_size=4), WORDS, st.lists(WORDS, max_size=3, unique=True))
def test_any_program_is_read_back(program: list[str], description: str, choices: list[str]) -> None:
    option = ProgramOption("mode", choices=tuple(choices))
    recipe = Recipe(
        name="mine", description=description, image="img", program=tuple(program), options={"mode": None},
        choices={"mode": option.choices} if choices else {}, env={"PYTHONNOUSERSITE": "1"},
    )  # fmt: skip
    assert read_back(recipe, option) == recipe


@pytest.mark.parametrize(
    "word", ["1e5", "0o17", "yes", "null", ".inf", "-", "---", "#", "a: b", "*a", "!x", "~", "é\u2028"]
)
def test_words_that_yaml_takes_for_something_else_stay_words(word: str) -> None:
    recipe = Recipe(name="mine", description="x", image="img", program=(word,), env={"PYTHONNOUSERSITE": "1"})
    assert read_back(recipe) == recipe
