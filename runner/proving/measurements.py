"""The rungs above the main job: whether what is measured can be believed, and what measuring costs. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from statistics import median

from runner.model.verdict import ProvenValue
from runner.proving.facts import ClocksFacts, RooflineFacts, SlicesFacts, SyntheticFacts
from runner.proving.ladder import (
    FIRST,
    MODERN,
    Earlier,
    Job,
    JobOutcome,
    Judgement,
    Ladder,
    Rung,
    batch,
    benchmark,
    capability,
    facts_of,
    failed,
    precision,
    step,
)
from runner.statistics.launches import compare

_CLOCKS_AGREE = 0.01  # of device events and the host's clock
_MOST_INSTRUMENTATION = 0.01  # of a step
_ABOVE_ROOFLINE = 1.05  # clocks of a GPU rise and fall between two jobs
_HOOKS_ORDER = "ABBA"  # A without hooks, B with them
_SYNTHETIC_ORDER = "ABBABA"  # A Horovod's script, B ours
# In alternation both sides are short, so that three of each end in time; the run's own figure is main-tf32's.
_SHORT = {"warmup-steps": "20", "warmup-seconds": "5", "steps": "100", "window-seconds": "10", "demonstration": "true"}
# What a ladder that pretends computes: the model of a site without GPUs (runner/sites/files/local.yaml).
_SMALL = {"model": "tiny", "image-size": "32", "batch-size": "2"}


def rungs(main: dict[str, str]) -> tuple[Rung, ...]:
    """Those of this module, in their order.

    Args:
        main: rung of the main job -> its precision; the last is the one that others are held against.
    """
    last = list(main)[-1]
    return (
        Rung("mig", "parts of GPUs (MIG)", _slices_jobs, _slices, (FIRST,), _no_slices),
        Rung("clocks", "device events against the host's clock", _clocks_jobs, _clocks, (FIRST,)),
        Rung("roofline", "products, copies, and the main job's share of them", _roofline_jobs,
             partial(_roofline, main=main), (FIRST, last)),
        Rung("cost", "what our instrumentation and Horovod's hooks cost, one rank", _cost_jobs, _cost, (FIRST,)),
        Rung("synthetic", "ours and Horovod's synthetic script in alternation", _synthetic_jobs, _synthetic, (FIRST,)),
    )  # fmt: skip


def _no_slices(ladder: Ladder, earlier: Earlier) -> str:
    if ladder.pretend:
        return "processors have no parts of GPUs"
    first = earlier.get(FIRST)
    return "" if first is not None and first.figures.get("mig") else "no GPU is cut into parts"


def _slices_jobs(ladder: Ladder, _earlier: Earlier) -> tuple[Job, ...]:
    return (step(ladder, "slices", 1),)


def _slices(ladder: Ladder, _earlier: Earlier, outcomes: Sequence[JobOutcome]) -> Judgement:
    facts, faults = facts_of(ladder, outcomes[0], "slices", SlicesFacts)
    if faults:
        return failed(*faults)
    slices = facts[0].slices
    if not slices:
        return failed("the driver lists no part, though a GPU is cut into parts")
    faults = [f"{each.uuid}: {each.problem}" for each in slices if each.problem]
    faults += [f"{each.uuid}: {each.devices} devices" for each in slices if not each.problem and each.devices != 1]
    faults += [f"{each.uuid}: a product is wrong" for each in slices if not each.problem and not each.computes]
    if faults:
        return failed(*faults)
    figures: dict[str, ProvenValue] = {
        "slices": len(slices),
        "memory_bytes_least": min(each.memory_bytes for each in slices),
    }
    return Judgement("passed", figures=figures, proven=outcomes[0].proven)


def _clocks_jobs(ladder: Ladder, _earlier: Earlier) -> tuple[Job, ...]:
    return (step(ladder, "clocks", 1),)


def _clocks(ladder: Ladder, _earlier: Earlier, outcomes: Sequence[JobOutcome]) -> Judgement:
    facts, faults = facts_of(ladder, outcomes[0], "clocks", ClocksFacts)
    if faults:
        return failed(*faults)
    pairs = list(zip(facts[0].event_s, facts[0].wall_s, strict=False))
    if len(facts[0].event_s) != len(facts[0].wall_s) or not pairs or min(wall for _, wall in pairs) <= 0.0:
        return failed("the record of the step clocks has no times")
    off = median(event / wall - 1.0 for event, wall in pairs)
    if abs(off) > _CLOCKS_AGREE:
        return failed(f"device events differ from the host's clock by {100 * off:+.2f} %, more than 1 %")
    figures: dict[str, ProvenValue] = {
        "events_against_wall_percent": 100 * off,
        "largest_percent": max((100 * (event / wall - 1.0) for event, wall in pairs), key=abs),
    }
    return Judgement("passed", label=ladder.label, figures=figures, proven=outcomes[0].proven)


def _roofline_jobs(ladder: Ladder, _earlier: Earlier) -> tuple[Job, ...]:
    shape = {name: _SMALL[name] for name in ("model", "image-size")} if ladder.pretend else {}
    return (step(ladder, "roofline", 1, shape),)


def _roofline(ladder: Ladder, earlier: Earlier, outcomes: Sequence[JobOutcome], *, main: dict[str, str]) -> Judgement:
    facts, faults = facts_of(ladder, outcomes[0], "roofline", RooflineFacts)
    if faults:
        return failed(*faults)
    first = facts[0]
    if min([first.copy_bytes_per_s, *first.products.values()]) <= 0.0:
        return failed("the record of the step roofline has no rates")
    figures: dict[str, ProvenValue] = {f"{name}_tflop_per_s": rate / 1e12 for name, rate in first.products.items()}
    figures["copy_gb_per_s"] = first.copy_bytes_per_s / 1e9
    if first.flop_per_image is None:
        return Judgement("passed", label=ladder.label, figures=figures, proven=outcomes[0].proven)
    figures["gflop_per_image"] = first.flop_per_image / 1e9
    for rung, wanted in main.items():
        rate = earlier[rung].figures.get("images_per_s") if rung in earlier else None
        product = first.products.get(precision(ladder, earlier, wanted))
        if not isinstance(rate, float) or product is None:
            continue
        share = rate / ladder.gpus * first.flop_per_image / product
        figures[f"{rung}_percent_of_products"] = 100 * share
        if share > _ABOVE_ROOFLINE and not ladder.pretend:  # ranks that share processors know no such bound
            faults.append(f"{rung}: {rate:.1f} images/s are {100 * share:.0f} % of what products of matrices reach")
    return (
        failed(*faults)
        if faults
        else Judgement("passed", label=ladder.label, figures=figures, proven=outcomes[0].proven)
    )


def _cost_jobs(ladder: Ladder, earlier: Earlier) -> tuple[Job, ...]:
    limit_s = ladder.limit_s(len(_HOOKS_ORDER))
    return tuple(
        benchmark(
            ladder,
            earlier,
            1,
            {"precision": "amp", "channels-last": "true", "hooks-at-one": "true" if arm == "B" else "false"},
            limit_s=limit_s,
        )
        for arm in _HOOKS_ORDER
    )


def _cost(ladder: Ladder, _earlier: Earlier, outcomes: Sequence[JobOutcome]) -> Judgement:
    rates, faults = _rates(outcomes)
    shares = [each.instrumentation_share for each in outcomes if each.instrumentation_share is not None]
    if not faults and len(shares) != len(outcomes):
        faults = ["a run does not say what its instrumentation took"]
    if not faults and max(shares) >= _MOST_INSTRUMENTATION and not ladder.pretend:
        faults = [f"our calls took {100 * max(shares):.2f} % of the window, 1 % or more"]
    if faults:
        return failed(*faults)
    compared = compare(_HOOKS_ORDER, rates)
    figures: dict[str, ProvenValue] = {
        "instrumentation_percent": 100 * max(shares),
        "hooks_change_percent": 100 * compared.change,
        "hooks_verdict": compared.verdict,
    }
    label = ladder.label or next((each.demonstration for each in outcomes if each.demonstration), "")
    return Judgement("passed", label=label, figures=figures, proven=outcomes[0].proven)


def _synthetic_jobs(ladder: Ladder, earlier: Earlier) -> tuple[Job, ...]:
    limit_s = ladder.limit_s(len(_SYNTHETIC_ORDER))
    modern = ladder.pretend or capability(earlier) >= MODERN
    ours = {"precision": "tf32" if modern else "fp32", "hooks-at-one": "false"}
    ours |= {} if ladder.pretend else _SHORT
    theirs = _SMALL if ladder.pretend else {"batch-size": str(batch(earlier))}
    return tuple(
        benchmark(ladder, earlier, ladder.gpus, ours, limit_s=limit_s)
        if arm == "B"
        else step(ladder, "synthetic", ladder.gpus, theirs, limit_s=limit_s)
        for arm in _SYNTHETIC_ORDER
    )


def _synthetic(ladder: Ladder, _earlier: Earlier, outcomes: Sequence[JobOutcome]) -> Judgement:
    rates: list[float] = []
    faults: list[str] = []
    for arm, outcome in zip(_SYNTHETIC_ORDER, outcomes, strict=True):
        if arm == "B":
            ours, wrong = _rates([outcome])
            rates += ours
        else:
            facts, wrong = facts_of(ladder, outcome, "synthetic", SyntheticFacts)
            if not wrong and any(each.size != ladder.gpus or each.images_per_s <= 0.0 for each in facts):
                wrong = [f"the script saw a world of {facts[0].size}, planned {ladder.gpus}, or has no rate"]
            rates += [facts[0].images_per_s] if not wrong else []
        faults += wrong
    if faults:
        return failed(*dict.fromkeys(faults))
    compared = compare(_SYNTHETIC_ORDER, rates)
    figures: dict[str, ProvenValue] = {
        "script_images_per_s": median(_of(rates, "A")),
        "ours_images_per_s": median(_of(rates, "B")),
        "ours_change_percent": 100 * compared.change,
        "verdict": compared.verdict,
    }
    if compared.low is not None and compared.high is not None:
        figures["change_low_percent"], figures["change_high_percent"] = 100 * compared.low, 100 * compared.high
    return Judgement("passed", label=ladder.label, figures=figures, proven=outcomes[0].proven)


def _of(rates: Sequence[float], arm: str) -> list[float]:
    return [rate for letter, rate in zip(_SYNTHETIC_ORDER, rates, strict=True) if letter == arm]


def _rates(outcomes: Sequence[JobOutcome]) -> tuple[list[float], list[str]]:
    """The proven figures of runs of the main job, or what is wrong."""
    rates = [each.images_per_s for each in outcomes if each.outcome == "measured" and each.images_per_s]
    faults = [
        "; ".join((f"verdict {each.outcome}", *each.reasons[:2]))
        for each in outcomes
        if each.outcome != "measured" or not each.images_per_s
    ]
    return rates, faults
