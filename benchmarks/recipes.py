"""The benchmarks beside a plain Horovod script, and what each of their settings changes: ``make bench-recipes``.

What is launched in which order, and the tables in Markdown; docs/recipes/README.md has the first. Pure: the launches
are made by tests/long/benchmarks/test_recipes.py. A launch counts as one rate: timed steps over the window's seconds
on rank 0, as the program itself reports both. Launches are compared as ``runner compare`` does it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from runner.figures.compare.launches import judgement_of
from runner.statistics.launches import MARGIN, Comparison, compare, launches_needed

Framework = Literal["pytorch", "tensorflow"]
Round = Sequence[tuple[str, float]]  # name of an arm and its rate, as they ran
ROUNDS = 6  # of script and recipe: launches of each
SETTING_ROUNDS = 3  # of these, those in which each setting runs, too
RANKS, THREADS = 2, 1
WARMUP_STEPS, STEPS = 4, 16
SAME = {"model": "resnet18", "image-size": "64", "batch-size": "4"}  # of script and recipe
MOMENTUM = 0.9  # that of the recipes
SCRIPT, RECIPE = "script", "recipe"


@dataclass(frozen=True)
class Setting:
    """A change to the recipe as it is compared with the script.

    Attributes:
        name: as a reader would type it. options: of the recipe. env: variables.
    """

    name: str
    options: Mapping[str, str] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)


def _option(name: str, value: str) -> Setting:
    return Setting(f"{name}={value}", {name: value})


# How the recipe is compared with the script: without what that lacks.
PLAIN: dict[Framework, dict[str, str]] = {
    "pytorch": {"precision": "fp32", "channels-last": "false"},
    "tensorflow": {"precision": "fp32"},
}
_NO_FUSION = Setting("HOROVOD_FUSION_THRESHOLD=0", env={"HOROVOD_FUSION_THRESHOLD": "0"})
# On the processors of this benchmark: what a setting gains on a GPU is another question.
SETTINGS: dict[Framework, tuple[Setting, ...]] = {
    "pytorch": (
        _option("channels-last", "true"),
        _option("precision", "amp-bf16"),
        _option("fp16-allreduce", "true"),
        _option("compile", "true"),
        _NO_FUSION,
    ),
    "tensorflow": (_option("mode", "graph"), _option("fp16-allreduce", "true"), _option("compile", "true")),
}
_GPU_ONLY, _FOR_TIME = "not measured here (GPU only)", "not measured here (left out for time)"
NOT_MEASURED: dict[Framework, dict[str, str]] = {
    "pytorch": {
        "groups": _FOR_TIME,
        "precision=tf32": _GPU_ONLY,
        "precision=amp-fp16": _GPU_ONLY,
        "cuDNN's search for the fastest convolution, always on": _GPU_ONLY,
        "OMP_NUM_THREADS": "not measured here (two ranks share two processors)",
    },
    "tensorflow": {
        "mode=fit": _FOR_TIME,
        "precision=amp-bf16": _FOR_TIME,
        "precision=tf32": _GPU_ONLY,
        "precision=amp-fp16": _GPU_ONLY,
        "OMP_NUM_THREADS": "not measured here (two ranks share two processors)",
    },
}


def rounds_of(framework: Framework) -> tuple[tuple[str, ...], ...]:
    """The arms of each round, in the order in which they run: every second round backwards (ABBA)."""
    short = (SCRIPT, RECIPE)
    long = (*short, *(setting.name for setting in SETTINGS[framework]))
    rounds = [long if place < SETTING_ROUNDS else short for place in range(ROUNDS)]
    return tuple(arms if place % 2 == 0 else arms[::-1] for place, arms in enumerate(rounds))


def compared(rounds: Sequence[Round], base: str, other: str) -> Comparison:
    """The other arm against the base, from the rounds in which both ran.

    Raises:
        ValueError: there is no such round, or a rate is not positive.
    """
    both = [arms for arms in rounds if {base, other} <= {name for name, _ in arms}]
    launches = [(name, rate) for arms in both for name, rate in arms if name in (base, other)]
    order = "".join("A" if name == base else "B" for name, _ in launches)
    return compare(order, [rate for _, rate in launches])


def speed_row(framework: Framework, rounds: Sequence[Round]) -> str:
    against = compared(rounds, SCRIPT, RECIPE)
    return f"| horovod-{framework} | {_launches(rounds, RECIPE)} | {_ratio(against)} | {not_slower(against)} |"


def not_slower(against: Comparison) -> str:
    """Whether it is shown that B is not slower than A by more than the margin."""
    judgement = judgement_of(against, 1.0 - MARGIN, is_apart=not against.is_balanced)
    if judgement == "good":
        return "yes"
    return f"no: slower by more than {MARGIN:.0%}" if judgement == "below" else f"no verdict{_needed(against)}"


def setting_rows(framework: Framework, rounds: Sequence[Round]) -> list[str]:
    """The rows of the second table: each setting against the recipe without it; then those that are not measured."""
    rows = []
    for setting in SETTINGS[framework]:
        against = compared(rounds, RECIPE, setting.name)
        verdict = against.verdict + (_needed(against) if against.verdict == "no verdict" else "")
        rows.append(f"| `{setting.name}` | {_launches(rounds, setting.name)} | {_ratio(against)} | {verdict} |")
    return [*rows, *(f"| {name} | | | {why} |" for name, why in NOT_MEASURED[framework].items())]


def tables(framework: Framework, rounds: Sequence[Round]) -> str:
    return "\n".join(
        (
            "| recipe | launches of each | steps a second, recipe / script | not slower by more than 2 % |",
            "|---|---|---|---|",
            speed_row(framework, rounds),
            "",
            f"| setting of horovod-{framework} | launches of each | steps a second, with / without | verdict |",
            "|---|---|---|---|",
            *setting_rows(framework, rounds),
        )
    )


def _launches(rounds: Sequence[Round], arm: str) -> int:
    return sum(name == arm for launches in rounds for name, _ in launches)


def _ratio(against: Comparison) -> str:
    """``1.013 (95 %: 0.998 to 1.028)``."""
    if against.low is None or against.high is None:
        return f"{1 + against.change:.3f}"
    return f"{1 + against.change:.3f} (95 %: {1 + against.low:.3f} to {1 + against.high:.3f})"


def _needed(against: Comparison) -> str:
    if not against.deviation:
        return ""
    count = launches_needed(MARGIN, against.deviation)
    return f": launches differ by {against.deviation:.1%}; {count} of each find a change of {MARGIN:.0%}"
