"""Two arms in alternation: faster, slower, equivalent, or no verdict."""

from __future__ import annotations

import pytest

from runner.statistics.launches import compare

ORDER = "ABBABA"


def rates(change: float, drift: float = 0.0, noise: tuple[float, ...] = (0.0,) * 6) -> list[float]:
    """Of launches around 100, B ``change`` faster, each launch ``drift`` faster than the one before."""
    return [
        100.0 * (1 + change if arm == "B" else 1.0) * (1 + drift) ** place * (1 + noise[place])
        for place, arm in enumerate(ORDER)
    ]


QUIET = (0.001, -0.001, 0.0005, -0.0005, 0.001, -0.001)
LOUD = (0.05, -0.05, 0.03, -0.03, 0.05, -0.05)


@pytest.mark.parametrize(
    ("change", "noise", "verdict"),
    [
        (0.1, QUIET, "faster"),
        (-0.1, QUIET, "slower"),
        (0.0, QUIET, "equivalent"),
        (0.01, QUIET, "faster, within the margin"),
        (0.03, LOUD, "no verdict"),
    ],
)
def test_the_verdict_goes_by_the_interval_and_the_margin(change: float, noise: tuple[float, ...], verdict: str) -> None:
    compared = compare(ORDER, rates(change, noise=noise))
    assert compared.verdict == verdict
    assert compared.low is not None
    assert compared.high is not None
    assert compared.low < change < compared.high
    assert bool(compared.why) == (verdict == "no verdict")


def test_a_drift_that_both_arms_share_is_taken_out() -> None:
    compared = compare(ORDER, rates(0.0, drift=0.05, noise=QUIET))
    assert compared.verdict == "equivalent"
    assert compared.change == pytest.approx(0.0, abs=0.005)


def test_few_launches_and_sides_that_ran_apart_get_no_verdict() -> None:
    few = compare("ABBA", [100.0, 120.0, 120.0, 100.0])
    assert (few.verdict, few.low) == ("no verdict", None)
    assert few.change == pytest.approx(0.2)
    assert "fewer than 3" in few.why
    assert compare("AAABBB", [100.0, 100.1, 99.9, 120.0, 120.1, 119.9]).why.startswith(
        "the order is not interleaved, so what changed on the machine meanwhile"
    )


@pytest.mark.parametrize("order", ["AAABBBBBBAAA", "ABBBAA", "AABBAABB"])
def test_sessions_are_no_turns_though_no_line_goes_through_them(order: str) -> None:
    """The machine was slower in the middle, whatever ran then: sides in sessions would get a false verdict of it."""
    middle = (len(order) - 1) / 2.0
    compared = compare(order, [100.0 + abs(place - middle) for place in range(len(order))])
    assert compared.verdict == "no verdict"
    assert compared.why.startswith("the order is not interleaved")


@pytest.mark.parametrize("order", ["ABBABA", "ABBAAB", "ABBABAAB", "ABBAABBAABBA", "AABAABAAB"])
def test_what_studies_and_benchmarks_run_is_in_turns(order: str) -> None:
    assert compare(order, [120.0 if side == "B" else 100.0 + place % 2 for place, side in enumerate(order)]).why == ""


@pytest.mark.parametrize(
    ("order", "values"), [("AB", [1.0]), ("AA", [1.0, 1.0]), ("AB", [1.0, 0.0]), ("AC", [1.0, 1.0])]
)
def test_what_cannot_be_compared_is_an_error(order: str, values: list[float]) -> None:
    with pytest.raises(ValueError, match="rates must be positive, one for each launch"):
        compare(order, values)
