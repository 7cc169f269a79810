"""Studies with known losses, simulated: raw step times of every rank in every arm, through the rules that judge runs.

A step of a rank is computing, gradient hooks and input. Ranks that communicate wait in each step for the slowest, then
coordinate, then move gradients. Nodes have up to eight GPUs. Each repeat runs every GPU alone, without and with hooks,
then all GPUs with arms in alternation.
"""

import math
from dataclasses import dataclass
from random import Random

import msgspec

from runner.model.request import RunArm
from runner.model.study import Arm, Launch, LaunchFacts
from runner.model.verdict import ArmFigure
from runner.statistics import loss
from runner.statistics.run import ArmWindow, arm_figure

STEP_S = 0.1
BATCH = 100
GPUS_PER_NODE = 8
WINDOWS: tuple[RunArm, ...] = ("uncoupled", "coordination", "full", "coordination", "uncoupled")


@dataclass(frozen=True)
class Losses:
    """What is planted: shares of a step's computing, but for ``rank`` and ``node``: how much longer theirs takes.

    ``shared``: computing takes longer where a node's GPUs work at once. ``jitter``: standard deviation of one step.
    """

    hooks: float = 0.0
    shared: float = 0.0
    input: float = 0.0
    rank: float = 0.0
    node: float = 0.0
    jitter: float = 0.0
    coordination: float = 0.0
    overlap: float = 0.0
    communication: float = 0.0


# Each loss and the row that it belongs in.
PLANTED: dict[str, tuple[Losses, str]] = {
    "gradient hooks, +10 %": (Losses(hooks=0.10), loss.HOOKS),
    "GPUs of a node slow each other, +15 %": (Losses(shared=0.15), loss.NODE),
    "input slower for many, +15 %": (Losses(input=0.15), loss.NODE),
    "one rank slower, +25 %": (Losses(rank=0.25), loss.WAITING),
    "one node slower, +25 %": (Losses(node=0.25), loss.WAITING),
    "jitter of each step, 5 %": (Losses(jitter=0.05), loss.WAITING),
    "coordination, +10 %": (Losses(coordination=0.10), loss.COORDINATION),
    "overlap slows computing, +10 %": (Losses(overlap=0.10), loss.OVERLAP),
    "a slow link, +20 %": (Losses(communication=0.20), loss.EXPOSED),
}
# What any healthy cluster loses.
HEALTHY = Losses(hooks=0.005, shared=0.01, jitter=0.005, coordination=0.01, overlap=0.01, communication=0.02)


def launches(
    random: Random, gpus: int, planted: Losses, repeats: int = 3, steps: int = 40, noise: int | None = None
) -> list[LaunchFacts]:
    """A study's launches at one size, each proven; launches differ by 0.5 %, ranks by 0.3 %, clocks do not.

    ``noise``: a seed for all but what the ranks are.
    """
    levels = [math.exp(random.gauss(0.0, 0.003)) for _ in range(gpus)]
    levels[gpus - 1] *= 1.0 + planted.rank
    per_node = min(GPUS_PER_NODE, max(gpus // 2, 1))
    for rank in range(min(per_node, gpus - 1)):
        levels[rank] *= 1.0 + planted.node
    random = random if noise is None else Random(noise)
    made: list[LaunchFacts] = []
    for repeat in range(1, repeats + 1):
        shared = math.exp(random.gauss(0.0, 0.005))  # what all launches of a repeat have in common
        arms: tuple[Arm, Arm] = ("solo", "solo-hooks")
        for arm in arms:
            for rank in range(gpus):
                extra = 0.0 if arm == "solo" else planted.hooks
                step_s = STEP_S * (levels[rank] + extra) * shared * _launch(random)
                made.append(_facts(1, arm, repeat, divmod(rank, per_node), BATCH / step_s, ()))
        figures = _alternating(random, [level * shared * _launch(random) for level in levels], planted, steps)
        facts = _facts(gpus, "full", repeat, (None, None), figures[-1].samples_per_s, figures)
        made.append(msgspec.structs.replace(facts, gpus_by_node=_ranks(gpus, per_node)))
    return made


def _launch(random: Random) -> float:
    return math.exp(random.gauss(0.0, 0.002))


def _ranks(gpus: int, per_node: int) -> tuple[int, ...]:
    whole, rest = divmod(gpus, per_node)
    return (per_node,) * whole + ((rest,) if rest else ())


def _facts(
    gpus: int, arm: Arm, repeat: int, place: tuple[int | None, int | None], rate: float, arms: tuple[ArmFigure, ...]
) -> LaunchFacts:
    node, device = place
    key = f"g{gpus:04}-{arm}-{node}-{device}-r{repeat}"
    launch = Launch(key, gpus, arm, repeat, 0, arms=tuple(each.arm for each in arms), node=node, device=device)
    return LaunchFacts(launch, "proven", images_per_s=rate, arms=arms, sm_clock_mhz=1400.0)


def _alternating(random: Random, levels: list[float], planted: Losses, steps: int) -> tuple[ArmFigure, ...]:
    windows = [(arm, _window(random, levels, arm, planted, steps)) for arm in WINDOWS]
    names: tuple[RunArm, ...] = ("uncoupled", "coordination", "full")
    return tuple(arm_figure(name, [window for arm, window in windows if arm == name], 1400.0) for name in names)


def _window(random: Random, levels: list[float], arm: RunArm, planted: Losses, steps: int) -> list[ArmWindow]:
    factor = (1.0 + planted.shared) * (1.0 + (planted.overlap if arm == "full" else 0.0))
    extra = planted.hooks + planted.input
    computing = [
        [
            STEP_S * (level * factor * math.exp(random.gauss(0.0, planted.jitter)) + extra)
            for _ in range(steps)
        ]
        for level in levels
    ]  # fmt: skip
    if arm == "uncoupled":
        return [ArmWindow(BATCH * steps, steps, math.fsum(own), own) for own in computing]
    after = planted.coordination + (planted.communication if arm == "full" else 0.0)
    end_s = math.fsum(max(each) for each in zip(*computing, strict=True)) + steps * STEP_S * after
    return [ArmWindow(BATCH * steps, steps, end_s, own) for own in computing]


def share_in_its_row(seed: int, gpus: int, name: str, repeats: int = 3) -> tuple[float, float]:
    """How much of a planted loss lands in its own row, and how far rows and efficiency are from 1."""
    planted, row = PLANTED[name]
    changes = {field: getattr(planted, field) or getattr(HEALTHY, field) for field in Losses.__dataclass_fields__}
    with_it, without = (
        loss.attribution(gpus, (), launches(Random(seed), gpus, each, repeats), "one-allocation")
        for each in (Losses(**changes), HEALTHY)
    )
    own = [{each.name: each.loss.value for each in made.rows}[row] for made in (with_it, without)]
    whole = [math.fsum(each.loss.value for each in made.rows) for made in (with_it, without)]
    assert with_it.efficiency is not None
    return (own[0] - own[1]) / (whole[0] - whole[1]), abs(with_it.efficiency.value + whole[0] - 1.0)
