"""The rungs, from the driver up to whether what the main job measures can be believed.

Each is a few jobs and a pure judgement on what they left.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from statistics import median

from runner.core.text import counted
from runner.model.figure import figure_of, in_words, shared_doubts
from runner.model.verdict import BETWEEN_GPUS, ProvenGpu, Verdict
from runner.proving.facts import (
    AllreduceFacts,
    ClocksFacts,
    DevicesFacts,
    RooflineFacts,
    SeenDevice,
    SlicesFacts,
    SyntheticFacts,
)
from runner.proving.ladder import (
    FIRST,
    MODERN,
    Earlier,
    FailedError,
    Figures,
    Job,
    JobOutcome,
    Judgement,
    Ladder,
    Rung,
    batch,
    benchmark,
    capability,
    facts_of,
    numbers,
    precision,
    require,
    step,
)
from runner.statistics.launches import compare

MAIN_RESULT = "main-channels-last"  # the recipe's own defaults, and so the main job as a user gets it
# The last is the one that others are held against.
_PRECISIONS = {"main-fp32": "fp32", "main-tf32": "tf32", "main-amp": "amp", MAIN_RESULT: "amp"}
_CLOCKS_AGREE = 0.01  # of device events and the host's clock
_MOST_INSTRUMENTATION = 0.01  # of a step
_ABOVE_ROOFLINE = 1.05  # clocks of a GPU rise and fall between two jobs
_HOOKS_ORDER = "ABBA"  # A without hooks, B with them
_SYNTHETIC_ORDER = "ABBAAB"  # A Horovod's script, B ours
# In alternation both sides are short, so that three of each end in time; the run's own figure is main-tf32's.
_SHORT = {"warmup-steps": "20", "warmup-seconds": "5", "steps": "100", "window-seconds": "10", "demonstration": "true"}
# What a ladder that pretends computes: the model of a site without GPUs (runner/sites/files/local.yaml).
_SMALL = {"model": "tiny", "image-size": "32", "batch-size": "2"}
# Recipes besides the main job -> options of a job of a few steps.
_FEW = {"model": "resnet18", "batch-size": "32", "warmup-steps": "2", "steps": "20", "demonstration": "true"}
FEW_STEPS: dict[str, dict[str, str]] = {
    "fsdp-pytorch": _FEW,
    "horovod-tensorflow": _FEW,
    "ddp-pytorch": _FEW,
    "allreduce": {"max-bytes": "1048576", "iterations": "5"},
    "horovod-minimal": {},
    "horovod-train": {"epochs": "1"},
    "horovod-train-keras": {"epochs": "1"},
    "lightning": {"epochs": "2"},
    "probe": {},
}
_OF_TENSORFLOW = ("horovod-tensorflow", "horovod-train-keras")  # may run where torch is not
_FEW_LIMIT_S = 4 * 60
_MISSING = re.compile(
    r"No module named '?(?:tensorflow|keras|lightning)\b|Extension horovod\.tensorflow has not been built"
    r"|\b(?:tensorflow|keras|lightning) is not in [^;]*"
)
# What --meter measures: a training that knows nothing of it.
_METERED = """
import sys
sys.path[:] = filter(None, sys.path)  # what lies where the job starts may be another user's
import torch, horovod.torch as hvd
hvd.init()
device = torch.device("cuda", hvd.local_rank()) if torch.cuda.is_available() else torch.device("cpu")
model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 8)).to(device)
optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.01), model.named_parameters())
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
torch.manual_seed(hvd.rank())
for _ in range(400):
    optimizer.zero_grad()
    model(torch.randn(32, 64, device=device)).square().mean().backward()
    optimizer.step()
"""


def rungs() -> tuple[Rung, ...]:
    """All of them, in their order."""
    first = (FIRST,)
    return (
        Rung(FIRST, "driver and devices", _step(FIRST), _devices),
        Rung("allreduce-1", "NCCL allreduce with hooks, one rank", _step("allreduce", 1),
             partial(_allreduce, all_gpus=False), first),
        Rung(BETWEEN_GPUS, "NCCL allreduce with hooks, all GPUs", _step("allreduce"),
             partial(_allreduce, all_gpus=True), first, _one_gpu),
        Rung("main-fp32", "main job, fp32", _main(precision="fp32"), _measured, first),
        Rung("main-tf32", "main job, TF32", _main(precision="tf32"), _measured, first, _no_tf32),
        Rung("main-amp", "main job, automatic mixed precision", _main(precision="amp"), _measured, first),
        Rung(MAIN_RESULT, "main job, mixed precision and channels_last", _main(precision="amp", channels_last="true"),
             _measured, first),
        Rung("result", "the main job's figure is proven", lambda *_: (), _result, (MAIN_RESULT,)),
        Rung("main-compile", "main job, the same compiled",
             _main(precision="amp", channels_last="true", compile="true"), _measured, first),
        Rung("mig", "parts of GPUs (MIG)", _step("slices", 1), _slices, first, _no_slices),
        Rung("clocks", "device events against the host's clock", _step("clocks", 1), _clocks, first),
        Rung("roofline", "products, copies, and the main job's share of them", _roofline_jobs, _roofline,
             (FIRST, MAIN_RESULT)),
        Rung("cost", "what our instrumentation and Horovod's hooks cost, one rank", _cost_jobs, _cost, first),
        Rung("synthetic", "ours and Horovod's synthetic script in alternation", _synthetic_jobs, _synthetic, first),
        *(Rung(recipe, f"the recipe {recipe} in a few steps", partial(_few_jobs, recipe), _few_steps,
               () if recipe in _OF_TENSORFLOW else first, is_refusable=True) for recipe in FEW_STEPS),
        Rung("meter", "a program that --meter measures", _metered, partial(_few_steps, only_measured=True),
             first),
    )  # fmt: skip


def names() -> tuple[str, ...]:
    """The names of all rungs, in their order."""
    return tuple(rung.name for rung in rungs())


def _step(name: str, gpus: int | None = None) -> Callable[[Ladder, Earlier], tuple[Job, ...]]:
    """The jobs of a rung that is one step of recipes/prove; on all GPUs where no number is given."""
    return lambda ladder, _earlier: (step(ladder, name, gpus or ladder.gpus),)


def _main(**options: str) -> Callable[[Ladder, Earlier], tuple[Job, ...]]:
    """The jobs of a rung that is a run of the main job on all GPUs."""
    named = {name.replace("_", "-"): value for name, value in options.items()}
    return lambda ladder, earlier: (benchmark(ladder, earlier, ladder.gpus, named),)


def _devices(ladder: Ladder, _earlier: Earlier, outcomes: Sequence[JobOutcome]) -> Judgement:
    facts = facts_of(ladder, outcomes[0], FIRST, DevicesFacts)
    first = facts[0]
    versions = {
        "torch": first.torch_version,
        "CUDA": first.cuda_version or "none",
        "NCCL": first.nccl_version or "none",
        "Horovod": first.horovod_version,
    }
    if ladder.pretend:
        return Judgement("passed", label=ladder.label, versions=versions, proven=outcomes[0].verdict.proven)
    # Each device once, though several ranks see it; those without UUID are all kept.
    every = [device for each in facts for device in each.devices]
    seen = [*{each.uuid: each for each in every if each.uuid is not None}.values()]
    seen += [each for each in every if each.uuid is None]
    require(_device_faults(ladder, facts, seen))
    mig = any(gpu.mig for each in facts for gpu in each.gpus)
    # CUDA shows a part of a GPU as a device: the machine is known by its whole GPUs.
    whole = {gpu.uuid or "": gpu.name or "" for each in facts for gpu in each.gpus}
    gpus = whole if mig else {device.uuid or "": device.name for device in seen}
    figures: Figures = {
        "devices": len(seen),
        "capability": min((device.capability for device in seen), key=numbers),
        "memory_bytes": min(device.memory_bytes for device in seen),
        "mig": mig,
    }
    return Judgement(
        "passed",
        figures=figures,
        proven=outcomes[0].verdict.proven,
        gpus=tuple(ProvenGpu(uuid, name) for uuid, name in gpus.items()),
        versions={"driver": first.driver, **versions},
    )


def _device_faults(ladder: Ladder, facts: Sequence[DevicesFacts], seen: Sequence[SeenDevice]) -> Iterable[str]:
    for rank, each in enumerate(facts):
        if each.nvml_problem or not each.driver:
            yield f"rank {rank}: the driver does not say its version: {each.nvml_problem or 'no answer'}"
        if not each.horovod_nccl:
            yield f"rank {rank}: its Horovod has no NCCL"
    if len(seen) < ladder.gpus:
        yield f"torch sees {counted(len(seen), 'device')} of {ladder.gpus}"
    for device in seen:
        if device.uuid is None:
            yield f"the driver gives no UUID for {device.name}"
        if not device.computes:
            yield f"a product of matrices is wrong on {device.name}"


def _one_gpu(ladder: Ladder, _earlier: Earlier) -> str:
    return "" if ladder.gpus > 1 else "there is one GPU: NCCL between GPUs stays UNPROVEN"


def _allreduce(ladder: Ladder, _earlier: Earlier, outcomes: Sequence[JobOutcome], *, all_gpus: bool) -> Figures:
    size = ladder.gpus if all_gpus else 1
    facts = facts_of(ladder, outcomes[0], "allreduce", AllreduceFacts)
    require(_allreduce_faults(ladder, facts, size, outcomes[0].nccl_processes))
    figures: Figures = {}
    for sums in zip(*(each.sums for each in facts), strict=True):
        slowest_s = max(each.median_s for each in sums)
        figures[f"allreduce_{sums[0].bytes}_bytes_s"] = slowest_s
        if size > 1 and slowest_s > 0.0 and sums[0].bytes >= 1 << 20:
            # NCCL's own tests count so: what each link carries, whatever the number of ranks.
            bus = sums[0].bytes / slowest_s * 2.0 * (size - 1) / size
            figures[f"bus_{sums[0].bytes}_bytes_gb_per_s"] = bus / 1e9
    return figures


def _allreduce_faults(ladder: Ladder, facts: Sequence[AllreduceFacts], size: int, nccl_processes: int) -> Iterable[str]:
    if len({len(each.sums) for each in facts}) != 1 or not facts[0].sums:
        yield "the ranks did not reduce the same tensors"
        return
    for rank, each in enumerate(facts):
        if each.size != size:
            yield f"rank {rank} saw a world of {each.size}, planned {size}"
        if wrong := [str(item.bytes) for item in each.sums if not item.right]:
            yield f"rank {rank}: wrong sums of {', '.join(wrong)} bytes"
        if not all(item.on_device for item in each.sums):
            yield f"rank {rank}: results left the device"
        if not each.hooked_gradients:
            yield f"rank {rank}: no gradient went through Horovod's hooks"
        if not (each.weights_equal and each.weights_moved):
            yield f"rank {rank}: after training, weights were not moved, and equal on all ranks"
        if not ladder.pretend and not each.nccl_built:
            yield f"rank {rank}: its Horovod has no NCCL"
    if not ladder.pretend and nccl_processes != size:
        yield f"NCCL's log shows {counted(nccl_processes, 'process')}, planned {size}: the tensors went another way"


def _no_tf32(ladder: Ladder, earlier: Earlier) -> str:
    if ladder.pretend or FIRST not in earlier or capability(earlier) >= MODERN:
        return ""
    return f"GPUs of compute capability {earlier[FIRST].figures['capability']} have no TF32"


def _measured(ladder: Ladder, _earlier: Earlier, outcomes: Sequence[JobOutcome]) -> Judgement:
    verdict = outcomes[0].verdict
    require(_rate_faults(verdict))
    figures: Figures = {"images_per_s": verdict.images_per_s, "steady": verdict.steady, **_doubts(outcomes)}
    if verdict.precision is not None:
        figures["images_per_s_low"], figures["images_per_s_high"] = verdict.precision
    return Judgement("passed", label=ladder.label or verdict.demonstration, figures=figures, proven=verdict.proven)


def _doubts(outcomes: Sequence[JobOutcome]) -> Figures:
    """Those of the figures that are taken from them."""
    doubts = shared_doubts((figure_of(each.verdict, "full") for each in outcomes), "run")
    return {"doubts": words} if (words := in_words(doubts, labelled=True)) else {}


def _result(ladder: Ladder, earlier: Earlier, _outcomes: Sequence[JobOutcome]) -> Judgement:
    """The main job with the recipe's defaults: measured on devices that differ, synchronised if there are several."""
    main = earlier[MAIN_RESULT]
    missing = [
        what
        for what, word, needed in (
            ("distinct devices, by their UUIDs", "by the UUIDs that the framework reported", not ladder.pretend),
            ("where the ranks computed", f"computed on {ladder.device}", True),
            ("synchronised ranks", "synchronised: ", ladder.gpus > 1),
        )
        if needed and not any(word in sentence for sentence in main.proven)
    ]
    require([f"the verdict of {MAIN_RESULT} does not prove: {', '.join(missing)}"] if missing else ())
    return Judgement("passed", label=main.label, proven=main.proven)


def _no_slices(ladder: Ladder, earlier: Earlier) -> str:
    if ladder.pretend:
        return "processors have no parts of GPUs"
    first = earlier.get(FIRST)
    return "" if first is not None and first.figures.get("mig") else "no GPU is cut into parts"


def _slices(ladder: Ladder, _earlier: Earlier, outcomes: Sequence[JobOutcome]) -> Judgement:
    slices = facts_of(ladder, outcomes[0], "slices", SlicesFacts)[0].slices
    if not slices:
        raise FailedError("the driver lists no part, though a GPU is cut into parts")
    faults = [f"{each.uuid}: {each.problem}" for each in slices if each.problem]
    faults += [f"{each.uuid}: {each.devices} devices" for each in slices if not each.problem and each.devices != 1]
    faults += [f"{each.uuid}: a product is wrong" for each in slices if not each.problem and not each.computes]
    require(faults)
    figures: Figures = {
        "slices": len(slices),
        "memory_bytes_least": min(each.memory_bytes for each in slices),
    }
    return Judgement("passed", figures=figures, proven=outcomes[0].verdict.proven)


def _clocks(ladder: Ladder, _earlier: Earlier, outcomes: Sequence[JobOutcome]) -> Figures:
    first = facts_of(ladder, outcomes[0], "clocks", ClocksFacts)[0]
    if len(first.event_s) != len(first.wall_s) or min(first.wall_s, default=0.0) <= 0.0:
        raise FailedError("the record of the step clocks has no times")
    off = [event / wall - 1.0 for event, wall in zip(first.event_s, first.wall_s, strict=True)]
    if abs(median(off)) > _CLOCKS_AGREE:
        raise FailedError(f"device events differ from the host's clock by {100 * median(off):+.2f} %, more than 1 %")
    return {
        "events_against_wall_percent": 100 * median(off),
        "largest_percent": 100 * max(off, key=abs),
    }


def _roofline_jobs(ladder: Ladder, _earlier: Earlier) -> tuple[Job, ...]:
    shape = {name: _SMALL[name] for name in ("model", "image-size")} if ladder.pretend else {}
    return (step(ladder, "roofline", 1, shape),)


def _roofline(ladder: Ladder, earlier: Earlier, outcomes: Sequence[JobOutcome]) -> Figures:
    first = facts_of(ladder, outcomes[0], "roofline", RooflineFacts)[0]
    if min([first.copy_bytes_per_s, *first.products.values()]) <= 0.0:
        raise FailedError("the record of the step roofline has no rates")
    figures: Figures = {f"{name}_tflop_per_s": rate / 1e12 for name, rate in first.products.items()}
    figures["copy_gb_per_s"] = first.copy_bytes_per_s / 1e9
    faults = []
    if first.flop_per_image is not None:
        figures["gflop_per_image"] = first.flop_per_image / 1e9
        for rung, wanted in _PRECISIONS.items():
            rate = earlier[rung].figures.get("images_per_s") if rung in earlier else None
            product = first.products.get(precision(ladder, earlier, wanted))
            if not isinstance(rate, float) or product is None:
                continue
            share = rate / ladder.gpus * first.flop_per_image / product
            figures[f"{rung}_percent_of_products"] = 100 * share
            if share > _ABOVE_ROOFLINE and not ladder.pretend:  # ranks that share processors know no such bound
                faults.append(f"{rung}: {rate:.1f} images/s are {100 * share:.0f} % of what products of matrices reach")
    require(faults)
    return figures


def _turns(ladder: Ladder, order: str) -> str:
    """The launches of two arms, in order; short measurements take each arm once, and give no verdict."""
    return order[:2] if ladder.quick else order


def _cost_jobs(ladder: Ladder, earlier: Earlier) -> tuple[Job, ...]:
    order = _turns(ladder, _HOOKS_ORDER)
    limit_s = ladder.limit_s(len(order))
    options = {"precision": "amp", "channels-last": "true"}
    hooks = ("true" if arm == "B" else "false" for arm in order)
    return tuple(benchmark(ladder, earlier, 1, {**options, "hooks-at-one": each}, limit_s=limit_s) for each in hooks)


def _cost(ladder: Ladder, _earlier: Earlier, outcomes: Sequence[JobOutcome]) -> Judgement:
    require(fault for each in outcomes for fault in _rate_faults(each.verdict))
    shares = [each.instrumentation_share for each in outcomes if each.instrumentation_share is not None]
    if len(shares) != len(outcomes):
        raise FailedError("a run does not say what its instrumentation took")
    if max(shares) >= _MOST_INSTRUMENTATION and not ladder.pretend:
        raise FailedError(f"our calls took {100 * max(shares):.2f} % of the window, 1 % or more")
    compared = compare(_turns(ladder, _HOOKS_ORDER), [each.verdict.images_per_s or 0.0 for each in outcomes])
    figures: Figures = {
        "instrumentation_percent": 100 * max(shares),
        "hooks_change_percent": 100 * compared.change,
        "hooks_verdict": compared.verdict,
        **_doubts(outcomes),
    }
    label = ladder.label or next((each.verdict.demonstration for each in outcomes if each.verdict.demonstration), "")
    return Judgement("passed", label=label, figures=figures, proven=outcomes[0].verdict.proven)


def _few_jobs(recipe: str, ladder: Ladder, _earlier: Earlier) -> tuple[Job, ...]:
    options = FEW_STEPS[recipe]
    if ladder.pretend:  # the site has a small model for it
        options = {name: value for name, value in options.items() if name not in ("model", "batch-size")}
    device = {} if recipe == "probe" else {"device": ladder.device}
    return (Job(recipe, ladder.gpus, tuple({**options, **device}.items()), limit_s=_FEW_LIMIT_S),)


def _metered(ladder: Ladder, _earlier: Earlier) -> tuple[Job, ...]:
    return (Job("", ladder.gpus, limit_s=_FEW_LIMIT_S, program=("python3", "-u", "-c", _METERED)),)


def _few_steps(
    ladder: Ladder, _earlier: Earlier, outcomes: Sequence[JobOutcome], *, only_measured: bool = False
) -> Judgement:
    """It came to its end; where a package is missing that it is made for, it does not apply."""
    verdict = outcomes[0].verdict
    missing = _MISSING.search(verdict.why_unmeasured)
    if missing and verdict.outcome == "failed":
        return Judgement("not applicable", missing[0])
    if verdict.outcome not in ("measured", "ran")[: 1 if only_measured else 2]:
        raise FailedError(f"verdict {verdict.outcome}", *verdict.reasons[:3])
    figures: Figures = {} if verdict.images_per_s is None else {f"{verdict.unit}_per_s": verdict.images_per_s}
    figures.update(_doubts(outcomes))
    return Judgement(
        "passed", label=ladder.label or "demonstration: a few steps", figures=figures, proven=verdict.proven
    )


def _synthetic_jobs(ladder: Ladder, earlier: Earlier) -> tuple[Job, ...]:
    order = _turns(ladder, _SYNTHETIC_ORDER)
    limit_s = ladder.limit_s(len(order))
    modern = ladder.pretend or capability(earlier) >= MODERN
    ours = {"precision": "tf32" if modern else "fp32", "hooks-at-one": "false"} | ({} if ladder.pretend else _SHORT)
    theirs = _SMALL if ladder.pretend else {"batch-size": str(batch(earlier))}
    return tuple(
        benchmark(ladder, earlier, ladder.gpus, ours, limit_s=limit_s)
        if arm == "B"
        else step(ladder, "synthetic", ladder.gpus, theirs, limit_s=limit_s)
        for arm in order
    )


def _synthetic(ladder: Ladder, _earlier: Earlier, outcomes: Sequence[JobOutcome]) -> Figures:
    order = _turns(ladder, _SYNTHETIC_ORDER)
    rates: list[float] = []
    faults: list[str] = []
    for arm, outcome in zip(order, outcomes, strict=True):
        try:
            if arm == "B":
                require(_rate_faults(outcome.verdict))
                rates.append(outcome.verdict.images_per_s or 0.0)
                continue
            facts = facts_of(ladder, outcome, "synthetic", SyntheticFacts)
            if any(each.size != ladder.gpus or each.images_per_s <= 0.0 for each in facts):
                raise FailedError(f"the script saw a world of {facts[0].size}, planned {ladder.gpus}, or has no rate")
            rates.append(facts[0].images_per_s)
        except FailedError as error:
            faults += error.args
    require(dict.fromkeys(faults))
    compared = compare(order, rates)
    by_arm = {arm: [rate for each, rate in zip(order, rates, strict=True) if each == arm] for arm in "AB"}
    figures: Figures = {
        "script_images_per_s": median(by_arm["A"]),
        "ours_images_per_s": median(by_arm["B"]),
        "ours_change_percent": 100 * compared.change,
        "verdict": compared.verdict,
        **_doubts(outcomes),
    }
    if compared.low is not None and compared.high is not None:
        figures["change_low_percent"], figures["change_high_percent"] = 100 * compared.low, 100 * compared.high
    return figures


def _rate_faults(verdict: Verdict) -> Iterable[str]:
    """What is wrong with a run of the main job that shall have a proven figure."""
    if verdict.outcome != "measured" or not verdict.images_per_s:
        yield "; ".join((f"verdict {verdict.outcome}", *verdict.reasons[:2]))
    if verdict.anew:
        yield "its records are not those that it was first judged by"
