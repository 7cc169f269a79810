"""The arms that a plan holds are those that its program is given."""

from __future__ import annotations

import pytest

from runner.planning.options import arms

OPTIONS = ("model", "arms")


@pytest.mark.parametrize(
    ("program", "planned"),
    [
        ((), ("full",)),
        (("--arms", "uncoupled"), ("uncoupled",)),
        (("--arms", "full", "--arms=uncoupled,coordination,full"), ("uncoupled", "coordination", "full")),
        (("--arms", "left,right"), ("full",)),
    ],
)
def test_the_last_value_of_the_option_counts(program: tuple[str, ...], planned: tuple[str, ...]) -> None:
    assert arms(("python3", "main.py", *program), OPTIONS) == planned


def test_a_program_without_the_option_trains() -> None:
    assert arms(("python3", "robot.py", "--arms", "uncoupled"), ("model",)) == ("full",)
