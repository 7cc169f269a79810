"""The benchmarks beside a plain script: launches in turns, verdicts by intervals, settings that exist."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from benchmarks.recipes import (
    NOT_MEASURED,
    PLAIN,
    RECIPE,
    SAME,
    SCRIPT,
    SETTINGS,
    Framework,
    Round,
    compared,
    not_slower,
    rounds_of,
    tables,
)
from runner.planning.options import values
from runner.recipes.loader import read_recipe

FRAMEWORKS = tuple(SETTINGS)
QUIET, LOUD = 0.001, 0.1  # how much launches differ
# Options that say how long and what is measured. One rank alone has hooks-at-one.
NOT_OF_SPEED = {"warmup-steps", "warmup-seconds", "steps", "window-seconds", "demonstration", "device", "seed", "arms"}
NOT_OF_SPEED |= {"hooks-at-one"}


def launched(framework: Framework, rates: Mapping[str, float], noise: float) -> list[Round]:
    """Launches of around 100 steps a second, 1 % faster each round; ``rates``: of an arm beside that."""
    return [
        [
            (arm, 100.0 * rates.get(arm, 1.0) * 1.01**place * (1.0 + noise * (-1) ** (place * (place + at) // 2)))
            for at, arm in enumerate(arms)
        ]
        for place, arms in enumerate(rounds_of(framework))
    ]


@pytest.mark.parametrize(
    ("ratio", "noise", "starts"),
    [(1.0, QUIET, "yes"), (0.99, QUIET, "yes"), (1.1, QUIET, "yes"), (0.95, QUIET, "no: slower"),
     (1.0, LOUD, "no verdict: launches differ by ")],
)  # fmt: skip
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_not_slower_goes_by_the_interval(framework: Framework, ratio: float, noise: float, starts: str) -> None:
    against = compared(launched(framework, {RECIPE: ratio}, noise), SCRIPT, RECIPE)
    assert not_slower(against).startswith(starts)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_each_setting_is_compared_with_the_recipe_of_its_own_rounds(framework: Framework) -> None:
    gains = {setting.name: 1.1 + 0.1 * at for at, setting in enumerate(SETTINGS[framework])}
    rounds = launched(framework, gains, QUIET)
    for name, gain in gains.items():
        against = compared(rounds, RECIPE, name)
        assert against.change == pytest.approx(gain - 1.0, abs=0.01)
        assert against.verdict == "faster"
    rows = [line for line in tables(framework, rounds).splitlines() if line.startswith("| `")]
    assert [row.split("`")[1] for row in rows] == list(gains)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_table_claims_nothing_of_launches_that_differ_much(framework: Framework) -> None:
    rows = [line for line in tables(framework, launched(framework, {}, LOUD)).splitlines() if "(95 %: " in line]
    assert len(rows) == 1 + len(SETTINGS[framework])
    assert all("no verdict: launches differ by " in row for row in rows)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_every_option_of_speed_has_a_row_or_a_reason(framework: Framework) -> None:
    recipe = read_recipe(f"horovod-{framework}").recipe
    plain = {**SAME, **PLAIN[framework]}
    base = values(recipe, {}, plain.items())
    for setting in SETTINGS[framework]:
        changed = values(recipe, {}, {**plain, **setting.options}.items())
        assert (changed != base) != bool(setting.env), setting.name
    tried = {option for setting in SETTINGS[framework] for option in setting.options}
    tried |= {name.partition("=")[0] for name in NOT_MEASURED[framework]}
    assert set(recipe.options) - tried - set(SAME) == NOT_OF_SPEED & set(recipe.options)
