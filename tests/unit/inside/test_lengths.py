"""Warm-up and window last as long as a figure needs; a command line that makes no sense is refused in words."""

import argparse
import math
from random import Random

import pytest
from gpu_runner_inside.benchmark import lengths
from gpu_runner_inside.benchmark.options import WARMUP, WINDOW, options_of

from runner.statistics import precision
from runner.statistics import run as transient

RUNS = 50


class Steps:
    """A program's steps on a clock of its own: noisy, and at first slower by ``start``, which decays over 10 s."""

    def __init__(self, seed: int, step_s: float, deviation: float, start: float) -> None:
        self._random, self._step_s, self._deviation, self._start = Random(seed), step_s, deviation, start
        self.now_s = 0.0

    def run(self, count: int) -> float:
        """Seconds that ``count`` steps took."""
        began_s = self.now_s
        if not self._start:  # one number has the distribution of their sum
            noise = self._deviation * math.sqrt(count) * self._random.gauss(0.0, 1.0)
            self.now_s += self._step_s * (count + noise)
            count = 0
        for _ in range(count):
            excess = self._start * math.exp(-self.now_s / 10.0)
            self.now_s += self._step_s * (1.0 + excess) * (1.0 + self._deviation * self._random.gauss(0.0, 1.0))
        return self.now_s - began_s


def options(*words: str) -> argparse.Namespace:
    return options_of(words, ["resnet50"])


def warmed_up(steps: Steps, chosen: argparse.Namespace) -> list[lengths.Part]:
    parts: list[lengths.Part] = []
    while count := lengths.next_part(parts, chosen):
        parts.append((count, steps.run(count)))
    return parts


@pytest.mark.parametrize("step_s", [0.02, 0.05, 0.1, 0.2, 0.5])
@pytest.mark.parametrize(("deviation", "start"), [(0.002, 0.0), (0.01, 0.0), (0.03, 0.0), (0.01, 0.3), (0.03, 0.3)])
def test_after_the_largest_cut_enough_is_left_of_the_window(step_s: float, deviation: float, start: float) -> None:
    short, chosen = 0, options()
    for seed in range(RUNS):
        steps = Steps(seed, step_s, deviation, start)
        length = lengths.planned(warmed_up(steps, chosen), chosen)
        assert (length.warmup_steps >= WARMUP[0], length.warmup_s >= WARMUP[1]) == (True, True)
        group_s = [steps.run(length.group_steps) for _ in range(length.groups)]
        kept = group_s[int(length.groups * lengths.LARGEST_CUT) :]
        long_enough = len(kept) * length.group_steps >= WINDOW[0] and sum(kept) >= WINDOW[1]
        short += not (long_enough and len(kept) >= lengths.LEAST_GROUPS)
    assert short == 0


def test_the_window_fits_what_the_judge_may_cut_and_needs() -> None:
    assert lengths.LARGEST_CUT == transient.LARGEST_CUT
    assert lengths.LEAST_GROUPS == precision.LEAST_GROUPS


def test_the_window_is_no_longer_than_it_must_be_and_a_demonstration_as_requested() -> None:
    length = lengths.planned(warmed_up(Steps(1, 0.1, 0.01, 0.0), options()), options())
    assert length.groups * length.group_steps * 0.1 <= 1.05 * WINDOW[1] * lengths.SPARE / (1 - lengths.LARGEST_CUT)
    chosen = options("--demonstration", "--steps", "20")
    parts = warmed_up(Steps(1, 1.5, 0.1, 0.0), chosen)
    length = lengths.planned(parts, chosen)
    assert (length.warmup_steps, length.groups * length.group_steps) == (3, 20)


def test_a_slow_first_step_does_not_shorten_the_window() -> None:
    parts = [(10, 60.0), (10, 1.0), (10, 1.0), (10, 1.0)]
    assert lengths.step_seconds([*parts, (300, 30.0), (300, 30.5)]) == pytest.approx(0.1, rel=0.01)


def test_a_warm_up_ends_when_both_its_steps_and_its_seconds_are_over() -> None:
    by_steps = warmed_up(Steps(1, 2.0, 0.0, 0.0), options())
    by_seconds = warmed_up(Steps(1, 0.01, 0.0, 0.0), options())
    assert sum(part[0] for part in by_steps) == 50
    assert 30.0 <= sum(part[1] for part in by_seconds) < 30.2


def test_lengths_follow_from_the_purpose_and_can_be_given() -> None:
    result = options()
    assert (result.warmup_steps, result.warmup_seconds, result.steps, result.window_seconds) == (50, 30.0, 200, 30.0)
    result = options("--demonstration", "--warmup-steps", "0", "--window-seconds", "1.5")
    assert (result.warmup_steps, result.warmup_seconds, result.steps, result.window_seconds) == (0, 0.0, 20, 1.5)


@pytest.mark.parametrize(
    ("option", "value", "why"),
    [
        ("--steps", "many", "'many' is no whole number"),
        ("--steps", "0", "0 is not at least 1"),
        ("--batch-size", "1.5", "'1.5' is no whole number"),
        ("--warmup-steps", "-1", "-1 is not at least 0"),
        ("--warmup-seconds", "-0.5", "-0.5 is no length of time"),
        ("--warmup-seconds", "nan", "nan is no length of time"),
        ("--window-seconds", "inf", "inf is no length of time"),
        ("--window-seconds", "long", "'long' is no number of seconds"),
        ("--seed", "x", "invalid int value: 'x'"),
        ("--model", "resnet5", "invalid choice: 'resnet5'"),
    ],
)
def test_nonsense_is_refused(capsys: pytest.CaptureFixture[str], option: str, value: str, why: str) -> None:
    with pytest.raises(SystemExit) as ended:
        options(f"{option}={value}")
    assert ended.value.code == 2
    result = capsys.readouterr().err
    assert f"argument {option}: " in result
    assert why in result
