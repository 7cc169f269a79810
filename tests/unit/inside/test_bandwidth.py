"""Bandwidths from raw times, as nccl-tests define them, and summaries of a rank's own times."""

import argparse

import pytest
from gpu_runner_inside import bandwidth
from gpu_runner_inside.bandwidth import Timed
from gpu_runner_inside.benchmark import measure


def test_bandwidths_are_those_of_nccl_tests() -> None:
    """PERFORMANCE.md of nccl-tests: algbw = S / t, and busbw = algbw x 2 (n - 1) / n."""
    ranks = [Timed(1_000_000_000, 10, (100.0, 50.0, 200.0))] * 8
    row = bandwidth.row(ranks)
    assert (row.time_s, row.fastest_s, row.slowest_s) == (10.0, 5.0, 20.0)
    assert row.algorithm_gb_s == pytest.approx(0.1)
    assert row.bus_gb_s == pytest.approx(0.1 * 2 * 7 / 8)


def test_ranks_are_taken_together() -> None:
    """The time of a round is the mean over ranks, as nccl-tests have it (``-a 1``); one rank has no bus."""
    assert bandwidth.row([Timed(8, 1, (1.0,)), Timed(8, 1, (3.0,))]).time_s == 2.0
    assert bandwidth.row([Timed(8, 1, (1.0,))]).bus_gb_s == 0.0
    with pytest.raises(ValueError, match="did not time the same"):
        bandwidth.row([Timed(8, 1, (1.0,)), Timed(8, 2, (1.0,))])


@pytest.mark.parametrize(("text", "number"), [("8", 8), ("64K", 65536), ("1M", 1 << 20), ("2G", 2 << 30)])
def test_numbers_of_bytes(text: str, number: int) -> None:
    assert bandwidth.byte_count(text) == number


@pytest.mark.parametrize("text", ["", "3", "-8", "1.5M", "1T", "8B", "eight"])
def test_what_is_no_number_of_bytes(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="is no number of bytes from 4 on"):
        bandwidth.byte_count(text)


def test_the_table_has_a_line_for_each_size() -> None:
    """Sizes double and are whole floats."""
    assert bandwidth.sizes(8, 70) == [8, 16, 32, 64]
    assert bandwidth.sizes(10, 16) == [8, 16]
    rows = [bandwidth.row([Timed(size, 1, (1e-3,))] * 2) for size in (8, 16)]
    lines = bandwidth.table(rows).splitlines()
    assert " ".join(lines[0].split()) == "bytes time us (fastest to slowest round) alg GB/s bus GB/s"
    assert [line.split()[:2] for line in lines[1:]] == [["8", "1000.0"], ["16", "1000.0"]]


def test_quantiles_lie_linearly_between_the_closest_values() -> None:
    assert measure.median([3.0, 1.0, 2.0]) == 2.0
    assert measure.median([1.0, 2.0, 3.0, 10.0]) == 2.5
    assert measure.quantile([0.0, 10.0], 0.95) == pytest.approx(9.5)
    with pytest.raises(ValueError, match="no values"):
        measure.median([])
