"""The options that the benchmarks share. Standard library only, so that it is tested without a framework."""

from __future__ import annotations

import argparse
import math
from typing import Callable, Iterable, Sequence

PRECISIONS = ("amp-bf16", "amp-fp16", "fp32", "tf32")
# Least warm-up and window of a figure that claims something: (steps, seconds).
WARMUP, WINDOW = (50, 30.0), (200, 30.0)
_DEMONSTRATION_WARMUP, _DEMONSTRATION_WINDOW = (3, 0.0), (20, 0.0)


def options_of(
    words: Sequence[str],
    models: Iterable[str],
    description: str | None = None,
    own: Callable[[argparse.ArgumentParser], object] = lambda _parser: None,
) -> argparse.Namespace:
    """The command line; lengths that it leaves open depend on whether this is a demonstration.

    Exits with 2 and a usage line when it can't be taken. ``own`` adds the options that only this framework has.
    """
    parser = argparse.ArgumentParser(prog="main.py", description=description, allow_abbrev=False)
    parser.add_argument("--model", choices=sorted(models), default="resnet50")
    parser.add_argument("--batch-size", type=_positive, default=256, help="images a rank and step")
    parser.add_argument("--image-size", type=_positive, default=224, metavar="PX", help="height and width")
    parser.add_argument("--precision", choices=PRECISIONS, default="amp-bf16")
    parser.add_argument("--compile", action="store_true", help="compile the model (torch.compile, XLA)")
    parser.add_argument("--fp16-allreduce", action="store_true", help="gradients travel as fp16")
    parser.add_argument("--warmup-steps", type=_count, help=f"at least (default {WARMUP[0]})")
    parser.add_argument("--warmup-seconds", type=_seconds, help=f"at least (default {WARMUP[1]:g})")
    parser.add_argument("--steps", type=_positive, help=f"timed, at least (default {WINDOW[0]})")
    parser.add_argument("--window-seconds", type=_seconds, help=f"timed, at least (default {WINDOW[1]:g})")
    parser.add_argument("--demonstration", action="store_true", help="short, and makes no performance claim")
    parser.add_argument("--seed", type=int, default=1, help="of rank 0's data; rank r has seed + r")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    own(parser)
    options = parser.parse_args(words)
    warmup = _DEMONSTRATION_WARMUP if options.demonstration else WARMUP
    window = _DEMONSTRATION_WINDOW if options.demonstration else WINDOW
    for name, default in (("warmup_steps", warmup[0]), ("warmup_seconds", warmup[1]),
                          ("steps", window[0]), ("window_seconds", window[1])):  # fmt: skip
        if getattr(options, name) is None:
            setattr(options, name, default)
    return options


def _positive(text: str) -> int:
    return _whole(text, 1)


def _count(text: str) -> int:
    return _whole(text, 0)


def _whole(text: str, least: int) -> int:
    try:
        number = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number") from None
    if number < least:
        raise argparse.ArgumentTypeError(f"{text} is not at least {least}")
    return number


def _seconds(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds") from None
    if not math.isfinite(number) or number < 0:
        raise argparse.ArgumentTypeError(f"{text} is no length of time")
    return number
