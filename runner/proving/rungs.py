"""The rungs, from the driver up. Each is a few jobs and a pure judgement on what they left."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial

from runner.core.text import counted
from runner.model.verdict import BETWEEN_GPUS, ProvenGpu, ProvenValue
from runner.proving import measurements
from runner.proving.facts import AllreduceFacts, DevicesFacts, SeenDevice
from runner.proving.ladder import (
    FIRST,
    MODERN,
    Earlier,
    Job,
    JobOutcome,
    Judgement,
    Ladder,
    Obstacle,
    Rung,
    benchmark,
    capability,
    facts_of,
    failed,
    no_obstacle,
    numbers,
    step,
)

MAIN_RESULT = "main-channels-last"  # the recipe's own defaults, and so the main job as a user gets it
_PRECISIONS = {"main-fp32": "fp32", "main-tf32": "tf32", "main-amp": "amp", MAIN_RESULT: "amp"}


def rungs() -> tuple[Rung, ...]:
    """All of them, in their order."""
    first = (FIRST,)
    return (
        Rung(FIRST, "driver and devices", _devices_jobs, _devices),
        Rung("allreduce-1", "NCCL allreduce with hooks, one rank", partial(_allreduce_jobs, all_gpus=False),
             partial(_allreduce, all_gpus=False), first),
        Rung(BETWEEN_GPUS, "NCCL allreduce with hooks, all GPUs", partial(_allreduce_jobs, all_gpus=True),
             partial(_allreduce, all_gpus=True), first, _one_gpu),
        _main("main-fp32", "main job, fp32", ("precision", "fp32")),
        _main("main-tf32", "main job, TF32", ("precision", "tf32"), obstacle=_no_tf32),
        _main("main-amp", "main job, automatic mixed precision", ("precision", "amp")),
        _main(MAIN_RESULT, "main job, mixed precision and channels_last", ("precision", "amp"),
              ("channels-last", "true")),
        _main("main-compile", "main job, the same compiled", ("precision", "amp"), ("channels-last", "true"),
              ("compile", "true")),
        Rung("result", "the main job's figure is proven", _no_jobs, _result, (MAIN_RESULT,)),
        *measurements.rungs(_PRECISIONS),
    )  # fmt: skip


def names() -> tuple[str, ...]:
    """The names of all rungs, in their order."""
    return tuple(rung.name for rung in rungs())


def _no_jobs(_ladder: Ladder, _earlier: Earlier) -> tuple[Job, ...]:
    return ()


# Steps of recipes/prove


def _devices_jobs(ladder: Ladder, _earlier: Earlier) -> tuple[Job, ...]:
    return (step(ladder, FIRST, ladder.gpus),)


def _devices(ladder: Ladder, _earlier: Earlier, outcomes: Sequence[JobOutcome]) -> Judgement:
    facts, faults = facts_of(ladder, outcomes[0], FIRST, DevicesFacts)
    if faults:
        return failed(*faults)
    first = facts[0]
    versions = {
        "torch": first.torch_version,
        "CUDA": first.cuda_version or "none",
        "NCCL": first.nccl_version or "none",
        "Horovod": first.horovod_version,
    }
    if ladder.pretend:
        return Judgement("passed", label=ladder.label, versions=versions, proven=outcomes[0].proven)
    seen = _distinct(device for each in facts for device in each.devices)
    faults = list(_device_faults(ladder, facts, seen))
    if faults:
        return failed(*faults)
    mig = any(gpu.mig for each in facts for gpu in each.gpus)
    # CUDA shows a part of a GPU as a device: the machine is known by its whole GPUs.
    whole = {gpu.uuid or "": gpu.name or "" for each in facts for gpu in each.gpus}
    gpus = whole if mig else {device.uuid or "": device.name for device in seen}
    figures: dict[str, ProvenValue] = {
        "devices": len(seen),
        "capability": min((device.capability for device in seen), key=numbers),
        "memory_bytes": min(device.memory_bytes for device in seen),
        "mig": mig,
    }
    return Judgement(
        "passed",
        figures=figures,
        proven=outcomes[0].proven,
        gpus=tuple(ProvenGpu(uuid, name) for uuid, name in gpus.items()),
        versions={"driver": first.driver, **versions},
    )


def _distinct(devices: Iterable[SeenDevice]) -> tuple[SeenDevice, ...]:
    """Each device once, though several ranks see it; those without UUID are all kept."""
    by_uuid: dict[str, SeenDevice] = {}
    nameless = []
    for device in devices:
        if device.uuid is None:
            nameless.append(device)
        else:
            by_uuid[device.uuid] = device
    return (*by_uuid.values(), *nameless)


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


def _allreduce_jobs(ladder: Ladder, _earlier: Earlier, *, all_gpus: bool) -> tuple[Job, ...]:
    return (step(ladder, "allreduce", ladder.gpus if all_gpus else 1),)


def _one_gpu(ladder: Ladder, _earlier: Earlier) -> str:
    return "" if ladder.gpus > 1 else "there is one GPU: NCCL between GPUs stays UNPROVEN"


def _allreduce(ladder: Ladder, _earlier: Earlier, outcomes: Sequence[JobOutcome], *, all_gpus: bool) -> Judgement:
    size = ladder.gpus if all_gpus else 1
    facts, faults = facts_of(ladder, outcomes[0], "allreduce", AllreduceFacts)
    faults = faults or list(_allreduce_faults(ladder, facts, size, outcomes[0].nccl_processes))
    if faults:
        return failed(*faults)
    figures: dict[str, ProvenValue] = {}
    for sums in zip(*(each.sums for each in facts), strict=True):
        slowest_s = max(each.median_s for each in sums)
        figures[f"allreduce_{sums[0].bytes}_bytes_s"] = slowest_s
        if size > 1 and slowest_s > 0.0 and sums[0].bytes >= 1 << 20:
            # NCCL's own tests count so: what each link carries, whatever the number of ranks.
            bus = sums[0].bytes / slowest_s * 2.0 * (size - 1) / size
            figures[f"bus_{sums[0].bytes}_bytes_gb_per_s"] = bus / 1e9
    return Judgement("passed", label=ladder.label, figures=figures, proven=outcomes[0].proven)


def _allreduce_faults(ladder: Ladder, facts: Sequence[AllreduceFacts], size: int, nccl_processes: int) -> Iterable[str]:
    if len({len(each.sums) for each in facts}) != 1 or not facts[0].sums:
        yield "the ranks did not reduce the same tensors"
        return
    for rank, each in enumerate(facts):
        if each.size != size:
            yield f"rank {rank} saw a world of {each.size}, planned {size}"
        wrong = [str(item.bytes) for item in each.sums if not item.right]
        if wrong:
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


# The main job


def _main(name: str, title: str, *options: tuple[str, str], obstacle: Obstacle = no_obstacle) -> Rung:
    return Rung(name, title, partial(_main_jobs, options=options), _measured, (FIRST,), obstacle)


def _main_jobs(ladder: Ladder, earlier: Earlier, options: tuple[tuple[str, str], ...]) -> tuple[Job, ...]:
    return (benchmark(ladder, earlier, ladder.gpus, dict(options)),)


def _measured(ladder: Ladder, _earlier: Earlier, outcomes: Sequence[JobOutcome]) -> Judgement:
    outcome = outcomes[0]
    if outcome.outcome != "measured" or outcome.images_per_s is None:
        return failed(f"verdict {outcome.outcome}", *outcome.reasons[:3])
    figures: dict[str, ProvenValue] = {"images_per_s": outcome.images_per_s, "steady": outcome.steady}
    if outcome.precision is not None:
        figures["images_per_s_low"], figures["images_per_s_high"] = outcome.precision
    return Judgement("passed", label=ladder.label or outcome.demonstration, figures=figures, proven=outcome.proven)


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
    if missing:
        return failed(f"the verdict of {MAIN_RESULT} does not prove: {', '.join(missing)}")
    return Judgement("passed", label=main.label, proven=main.proven)


def _no_tf32(ladder: Ladder, earlier: Earlier) -> str:
    if ladder.pretend or FIRST not in earlier or capability(earlier) >= MODERN:
        return ""
    return f"GPUs of compute capability {earlier[FIRST].figures['capability']} have no TF32"
