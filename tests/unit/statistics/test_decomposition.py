"""A loss divided into its steps: values of the simulated design, exact sums, and no share of nothing."""

from __future__ import annotations

import math
from random import Random

import pytest

from runner.model.study import Estimate
from runner.statistics.loss import Decomposition, decompose

# Rates of four levels in three rounds.
RATES = ((100.0, 101.0, 99.0), (97.0, 98.5, 96.2), (95.0, 96.0, 94.1), (88.0, 89.5, 87.0))


def in_rounds(rates: tuple[tuple[float, ...], ...] = RATES) -> Decomposition:
    return decompose([[[math.log(rate) for rate in column] for column in zip(*rates, strict=True)]])


def limits(part: Estimate) -> tuple[float | None, ...]:
    return part.value, part.low, part.high


def test_the_values_are_those_of_the_design() -> None:
    made = in_rounds()
    assert limits(made.efficiency) == pytest.approx((0.8816363, 0.8719118, 0.8914692), abs=1e-6)
    assert [limits(loss) for loss in made.losses] == [
        pytest.approx(values, abs=1e-6)
        for values in (
            (0.0263750, 0.0200820, 0.0326681), (0.0214893, 0.0154680, 0.0275105), (0.0704994, 0.0606825, 0.0803163)
        )
    ]  # fmt: skip
    assert made.shares is not None
    assert limits(made.shares[0]) == pytest.approx((0.2228305, 0.1821143, 0.2585015), abs=1e-6)


def test_rows_and_efficiency_add_up_to_one_with_gains_among_them() -> None:
    random = Random(1)
    for _ in range(100):
        rates = tuple(tuple(100.0 * math.exp(random.gauss(0.0, 0.2)) for _ in range(3)) for _ in range(6))
        made = in_rounds(rates)
        assert made.efficiency.value + math.fsum(loss.value for loss in made.losses) == pytest.approx(1.0, abs=1e-12)
        assert made.shares is None or math.fsum(each.value for each in made.shares) == pytest.approx(1.0)


def test_levels_of_independent_launches_are_less_certain_than_rounds() -> None:
    apart = decompose([[[math.log(rate)] for rate in level] for level in RATES])
    assert apart.efficiency.value == pytest.approx(in_rounds().efficiency.value)
    assert limits(apart.efficiency) == pytest.approx((0.8816363, 0.8559606, 0.9080822), abs=1e-6)


def test_a_loss_that_may_be_none_has_no_shares_and_one_round_no_interval() -> None:
    none = in_rounds(((100.0, 101.0, 99.0), (99.0, 101.5, 99.0)))
    assert none.shares is None
    one = in_rounds(((100.0,), (90.0,), (80.0,)))
    assert one.efficiency.value == pytest.approx(0.8)
    assert one.efficiency.low is None
    assert one.shares is None
    assert all(loss.low is None for loss in one.losses)


@pytest.mark.parametrize("blocks", [[], [[]], [[[1.0]]], [[[1.0, 2.0], [1.0]]]])
def test_what_is_no_loss_between_levels_is_refused(blocks: list[list[list[float]]]) -> None:
    with pytest.raises(ValueError, match="level"):
        decompose(blocks)
