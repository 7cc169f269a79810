"""What a study is expected to cost, before anything is submitted. Pure.

A launch takes its start (container, the framework's import, the world), its warm-up and its windows. Where a program
does not say how long it measures, the time limit is what it is expected to take.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from runner.core.text import gpus_text
from runner.model.backends import RUNTIMES
from runner.model.plan import Plan
from runner.model.study import Launch, WayCost
from runner.planning.options import options_of
from runner.study.plan import turns

# Until the first step, seconds: assumed. docs/start-up.md has what was measured; most of it is the framework's import.
_START_S, _START_NATIVE_S = 60.0, 30.0
# The least that a benchmark measures (gpu_runner_inside.benchmark.options), and a few seconds of a demonstration.
_WARMUP_S, _WINDOW_S, _DEMONSTRATION_S = 30.0, 30.0, 5.0
_BETWEEN_S = 10.0  # until GPUs and containers of the launch before are free, and its step has ended
# An allocation begins a launch where so many times its expected length, and so many seconds, are left.
_LONGER, _MORE_S = 1.5, 30
_AROUND_S = 60  # before the first launch of an allocation, and after the last
_PARALLEL = "the queue may run several at once: less time then, waiting for it not counted"
_ANY_GPU = "one GPU alone is any GPU, once a repeat"
_APART = (
    "figures only: no attribution of the loss and no A/B verdict, as the launches run apart; `compare` excepts those "
    "that ran in turns on the same nodes and GPUs"
)


def launch_s(plan: Plan, launch: Launch) -> float:
    """How long a launch is expected to take, seconds."""
    options = options_of(plan.program)
    if plan.result != "throughput":
        return float(plan.walltime_s)
    default_s = _DEMONSTRATION_S if "demonstration" in options else None
    warmup_s = _seconds(options, "warmup-seconds", _WARMUP_S if default_s is None else default_s)
    window_s = _seconds(options, "window-seconds", _WINDOW_S if default_s is None else default_s)
    windows = 2 * len(launch.arms) - 1 if launch.arms else 1  # a, b, full, b, a
    start_s = _START_S if RUNTIMES[plan.runtime].is_container else _START_NATIVE_S
    return min(start_s + warmup_s + windows * window_s, float(plan.walltime_s))


def separate(launches: Sequence[Launch], plans: Mapping[str, Plan], *, queued: bool) -> WayCost:
    """Each launch as a job of its own.

    Args:
        plans: by the launch's key. queued: the scheduler gives out nodes.
    """
    lengths = [launch_s(plans[each.key], each) for each in launches]
    sizes = [plans[each.key].occupied_gpus for each in launches]
    notes = (_APART, *((_ANY_GPU,) if any(each.arm.startswith("solo") for each in launches) else ()))
    return WayCost(
        way="separate",
        jobs=len(launches),
        gpu_hours=math.fsum(size * length for size, length in zip(sizes, lengths, strict=True)) / 3600.0,
        most_gpu_hours=math.fsum(plans[each.key].occupied_gpus * plans[each.key].walltime_s for each in launches)
        / 3600.0,
        wall_s=math.fsum(lengths),
        notes=(*notes, _PARALLEL) if queued and len(launches) > 1 else notes,
    )


def one_allocation(
    launches: Sequence[Launch], plans: Mapping[str, Plan], largest: Plan, *, site: str, idle_gpus_s: int | None
) -> WayCost:
    """One job of the largest size, with one launch after the other in it; single GPUs of different nodes at one time.

    Args:
        plans: by the launch's key. largest: the job of the study's largest launch.
        idle_gpus_s: after how long the site ends a job that leaves a GPU idle, seconds; None where that is unknown.
    """
    together = turns(launches)
    lengths = [max(launch_s(plans[each.key], each) for each in turn) + _BETWEEN_S for turn in together]
    limits = [
        (length, max(plans[each.key].walltime_s for each in turn))
        for turn, length in zip(together, lengths, strict=True)
    ]
    gpus = largest.occupied_gpus
    notes = (_idle(together, lengths, gpus, site, idle_gpus_s), *_alone(together))
    return WayCost(
        way="one-allocation",
        jobs=min(len(launches), 1),
        gpu_hours=gpus * math.fsum(lengths) / 3600.0,
        most_gpu_hours=gpus * most_s(limits) / 3600.0 if launches else 0.0,
        wall_s=math.fsum(lengths),
        notes=notes if launches else (),
    )


def _idle(
    together: Sequence[Sequence[Launch]], lengths: Sequence[float], gpus: int, site: str, idle_gpus_s: int | None
) -> str:
    """What the site does with GPUs that idle, and how long they will."""
    longest = run = 0.0
    for turn, length in zip(together, lengths, strict=True):
        run = run + length if sum(each.gpus for each in turn) < gpus else 0.0
        longest = max(longest, run)
    idle = f"GPUs idle for up to {longest / 60:.0f} min while smaller launches run"
    if idle_gpus_s is None:
        return f"{idle}; whether {site} ends such jobs is unknown"
    ends = longest > idle_gpus_s
    return f"{idle}; {site} ends such jobs after {idle_gpus_s / 60:.0f} min{': it would end this one' if ends else ''}"


def _alone(together: Sequence[Sequence[Launch]]) -> Iterator[str]:
    """How much of it is GPUs alone, and how there would be less."""
    alone = [turn for turn in together if turn[0].node is not None]
    if alone:
        gpus = len({(each.node, each.device) for turn in alone for each in turn})
        yield (
            f"{gpus_text(gpus)} alone, one of each node at a time: {len(alone)} of {len(together)} turns "
            "(--solo-gpus N: so many of each node a repeat)"
        )


def needed_s(expected_s: float, limit_s: int) -> int:
    """How many seconds of an allocation must be left for a launch to begin."""
    return min(math.ceil(expected_s * _LONGER) + _MORE_S, limit_s)


def most_s(launches: Sequence[tuple[float, int]]) -> int:
    """The time limit that an allocation is given for these launches, seconds, whole minutes.

    Args:
        launches: expected length and time limit of each, seconds; of those that run at one time, the longest.
    """
    wanted = sum(needed_s(expected_s, limit_s) for expected_s, limit_s in launches) + _AROUND_S
    return -(-wanted // 60) * 60


def _seconds(options: Mapping[str, str], name: str, default: float) -> float:
    try:
        value = float(options.get(name, default))
    except ValueError:
        return default
    return value if math.isfinite(value) and value >= 0 else default
