"""The benchmark's command line: what makes no sense is refused in words."""

from __future__ import annotations

import argparse

import pytest
from gpu_runner_inside.benchmark import options


def options_of(*words: str) -> argparse.Namespace:
    return options.options_of(words, ["tiny", "resnet50"])


def test_lengths_follow_from_the_purpose_and_can_be_given() -> None:
    result = options_of()
    assert (result.warmup_steps, result.warmup_seconds, result.steps, result.window_seconds) == (50, 30.0, 200, 30.0)
    result = options_of("--demonstration", "--warmup-steps", "0", "--window-seconds", "1.5")
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
        options_of(f"{option}={value}")
    assert ended.value.code == 2
    result = capsys.readouterr().err
    assert f"argument {option}: " in result
    assert why in result
