"""Several launches together: their rate, an efficiency against a base, and how many a claim needs."""

from __future__ import annotations

import pytest

from runner.statistics.launches import MOST_LAUNCHES, efficiency, launches_needed, mean_rate, needed, spread


@pytest.mark.parametrize(
    ("deviation", "launches"), [(0.005, (6, 3, 3)), (0.01, (17, 6, 3)), (0.02, (65, 18, 5)), (0.0, (3, 3, 3))]
)
def test_launches_that_find_a_change_of_one_two_and_five_per_cent(
    deviation: float, launches: tuple[int, int, int]
) -> None:
    """The figures of the simulated design, with 80 % power."""
    assert needed(deviation) == dict(zip(("0.01", "0.02", "0.05"), launches, strict=True))


def test_a_number_of_launches_that_is_not_known_to_be_enough_is_not_given() -> None:
    """With launches that differ by 40 %, 10,000 do not find a change of 1 %."""
    assert launches_needed(0.01, 0.4) == MOST_LAUNCHES
    assert needed(0.4).keys() == {"0.02", "0.05"}


def test_an_unknown_spread_needs_no_number() -> None:
    assert needed(spread([100.0])) == {}
    with pytest.raises(ValueError, match="above 0"):
        launches_needed(0.0, 0.01)


def test_one_launch_has_no_interval() -> None:
    assert mean_rate([100.0]).low is None
    two = mean_rate([100.0, 101.0])
    assert two.low is not None
    assert two.low < two.value < (two.high or 0.0)
    assert efficiency([90.0], [100.0, 101.0], rounds=False).low is None


def test_what_a_round_shares_is_no_uncertainty_of_its_efficiency() -> None:
    """Rounds that differ by 10 %, with the same ratio in each; independent launches do not know that."""
    base, rates = [100.0, 110.0, 120.0], [90.0, 99.0, 108.0]
    in_rounds, apart = (efficiency(rates, base, rounds=rounds) for rounds in (True, False))
    assert in_rounds.value == pytest.approx(0.9)
    assert in_rounds.low == pytest.approx(0.9)
    assert apart.value == pytest.approx(0.9)
    assert apart.low is not None
    assert apart.low < 0.8


@pytest.mark.parametrize("rates", [[], [0.0], [float("nan")], [100.0, -1.0]])
def test_a_rate_that_is_none_is_refused(rates: list[float]) -> None:
    with pytest.raises(ValueError, match="above 0"):
        mean_rate(rates)
