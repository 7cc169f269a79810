"""Several launches together: their rate, an efficiency against a base, two arms in alternation, and how many a claim
needs.
"""

from __future__ import annotations

import pytest

from runner.statistics.launches import MOST_LAUNCHES, compare, efficiency, launches_needed, mean_rate, needed, spread


@pytest.mark.parametrize(
    ("deviation", "launches"),
    [
        (0.005, {"0.01": 6, "0.02": 3, "0.05": 3}),
        (0.01, {"0.01": 17, "0.02": 6, "0.05": 3}),
        (0.02, {"0.01": 65, "0.02": 18, "0.05": 5}),
        (0.0, {"0.01": 3, "0.02": 3, "0.05": 3}),
        (spread([100.0]), {}),
    ],
)
def test_launches_that_find_a_change_with_80_per_cent_power(deviation: float | None, launches: dict[str, int]) -> None:
    assert needed(deviation) == launches


def test_a_number_of_launches_that_is_not_known_to_be_enough_is_not_given() -> None:
    assert launches_needed(0.01, 0.4) == MOST_LAUNCHES
    assert needed(0.4).keys() == {"0.02", "0.05"}


def test_one_launch_has_no_interval() -> None:
    assert mean_rate([100.0]).low is None
    two = mean_rate([100.0, 101.0])
    assert (two.low or 0.0) < two.value < (two.high or 0.0)
    assert efficiency([90.0], [100.0, 101.0], rounds=False).low is None


def test_what_a_round_shares_is_no_uncertainty_of_its_efficiency() -> None:
    """Rounds that differ by 10 %, with the same ratio in each; independent launches do not know that."""
    base, rates = [100.0, 110.0, 120.0], [90.0, 99.0, 108.0]
    in_rounds, apart = (efficiency(rates, base, rounds=rounds) for rounds in (True, False))
    assert (in_rounds.value, in_rounds.low, apart.value) == pytest.approx((0.9, 0.9, 0.9))
    assert apart.low is not None and apart.low < 0.8


ORDER = "ABBABA"
QUIET = (0.001, -0.001, 0.0005, -0.0005, 0.001, -0.001)
LOUD = (0.05, -0.05, 0.03, -0.03, 0.05, -0.05)


@pytest.mark.parametrize(
    ("change", "noise", "drift", "verdict"),
    [
        (0.1, QUIET, 0.0, "faster"),
        (-0.1, QUIET, 0.0, "slower"),
        (0.0, QUIET, 0.0, "equivalent"),
        (0.01, QUIET, 0.0, "faster, within the margin"),
        (0.03, LOUD, 0.0, "no verdict"),
        (0.0, QUIET, 0.05, "equivalent"),
    ],
)
def test_the_verdict_goes_by_the_interval_and_the_margin_and_no_drift_that_both_share(
    change: float, noise: tuple[float, ...], drift: float, verdict: str
) -> None:
    rates = [
        100.0 * (1 + change if arm == "B" else 1.0) * (1 + drift) ** place * (1 + noise[place])
        for place, arm in enumerate(ORDER)
    ]
    compared = compare(ORDER, rates)
    assert compared.verdict == verdict
    assert compared.low is not None and compared.high is not None
    assert compared.low < change < compared.high
    assert bool(compared.why) == (verdict == "no verdict")


def test_few_launches_get_no_verdict() -> None:
    few = compare("ABBA", [100.0, 120.0, 120.0, 100.0])
    assert (few.verdict, few.low) == ("no verdict", None)
    assert few.change == pytest.approx(0.2)
    assert "fewer than 3" in few.why


@pytest.mark.parametrize("order", ["AAABBB", "AAABBBBBBAAA", "ABBBAA", "AABBAABB"])
def test_sessions_are_no_turns_though_no_line_goes_through_them(order: str) -> None:
    """The machine was slower in the middle, whatever ran then: sides in sessions would get a false verdict of it."""
    middle = (len(order) - 1) / 2.0
    compared = compare(order, [100.0 + abs(place - middle) for place in range(len(order))])
    assert compared.verdict == "no verdict"
    assert compared.why.startswith("the order is not interleaved, so what changed on the machine meanwhile")


@pytest.mark.parametrize("order", ["AAABBB", "AAAABBB", "ABBBAA", "ABBABAA"])
@pytest.mark.parametrize("drift", [0.02, -0.02])
def test_without_a_balanced_order_the_change_is_that_of_the_rates(order: str, drift: float) -> None:
    """No line through them says that B is slower whose rates are higher."""
    rates = [(1.0 + drift) ** place * (0.98 if side == "B" else 1.0) for place, side in enumerate(order)]
    one, two = (mean_rate([rate for each, rate in zip(order, rates, strict=True) if each == side]) for side in "AB")
    compared = compare(order, rates)
    assert (compared.low, compared.high, compared.is_balanced) == (None, None, False)
    assert compared.change == pytest.approx(two.value / one.value - 1.0)


@pytest.mark.parametrize("order", ["ABBABAA", "ABBABBAA", "BAAABABB"])
def test_where_a_slow_first_launch_would_be_much_of_the_difference_an_order_where_it_is_not_is_named(
    order: str,
) -> None:
    compared = compare(order, [90.0, *(100.0 + place % 2 for place in range(1, len(order)))])
    assert (compared.verdict, compared.is_balanced) == ("no verdict", False)
    assert compared.why.endswith("a slow first launch may be all of the difference; in ABBAABBA it is not")


@pytest.mark.parametrize("launches", range(3, 30))
def test_the_order_of_a_study_keeps_a_slow_first_launch_out_of_the_difference(launches: int) -> None:
    order = ("ABBA" * launches)[: 2 * launches]
    slow = compare(order, [70.0, *(100.0 + place % 2 for place in range(1, 2 * launches))])
    assert slow.is_balanced and "faster" not in slow.verdict and "slower" not in slow.verdict


@pytest.mark.parametrize("size", [-0.5, -0.02, 0.02, 0.5])
@pytest.mark.parametrize("launches", [3, 4, 5, 8])
def test_a_change_of_the_machine_between_two_launches_of_a_study_is_no_difference_of_its_sides(
    launches: int, size: float
) -> None:
    order = ("ABBA" * launches)[: 2 * launches]
    for place in range(1, 2 * launches):
        changed = compare(order, [100.0 * (1 + size) if each < place else 100.0 for each in range(2 * launches)])
        assert "faster" not in changed.verdict and "slower" not in changed.verdict, place
    middle = compare("ABBAAB", [100.0, 100.0, 100.0, 110.0, 110.0, 110.0])
    assert (middle.verdict, middle.is_balanced) == ("no verdict", False)
    assert middle.why.startswith("a change on the machine after launch 3 explains the rates as well")


def test_a_change_of_the_machine_that_hides_a_difference_makes_no_equivalence() -> None:
    """B is 2.5 % slower; the machine was 4 % slower until the third launch."""
    rates = [
        (96.0 if place < 3 else 100.0) * (0.975 if side == "A" else 1.0) * (1 + noise)
        for place, (side, noise) in enumerate(zip("ABBAAB", QUIET, strict=True))
    ]
    hidden = compare("ABBAAB", rates)
    assert hidden.verdict == "no verdict"
    assert compare("ABBAAB", [100.0 * (1 + noise) for noise in QUIET]).verdict == "equivalent"


@pytest.mark.parametrize("order", ["ABBABA", "ABBAAB", "ABBABAAB", "ABBAABBAABBA", "AABAABAAB", "ABABBBAA"])
def test_what_studies_and_benchmarks_run_is_in_turns(order: str) -> None:
    assert compare(order, [120.0 if side == "B" else 100.0 + place % 2 for place, side in enumerate(order)]).why == ""


def test_rates_that_are_none_are_refused() -> None:
    for order, values in (("AB", [1.0]), ("AA", [1.0, 1.0]), ("AB", [1.0, 0.0]), ("AC", [1.0, 1.0])):
        with pytest.raises(ValueError, match="rates must be positive, one for each launch"):
            compare(order, values)
    for rates in ([], [0.0], [float("nan")], [100.0, -1.0]):
        with pytest.raises(ValueError, match="above 0"):
            mean_rate(rates)
