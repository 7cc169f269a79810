"""The parts of a ladder: what it is climbed with, its rungs, their jobs, and what these leave. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import msgspec

from runner.model.plan import RESULTS
from runner.model.records import ProvingRecord
from runner.model.verdict import ProvenGpu, ProvenValue, RungRecord, RungState, Verdict

RUNG_LIMIT_S = 9 * 60
STEPS, BENCHMARK = "prove", "horovod-pytorch"  # recipes
FIRST = "devices"  # the rung, and the step, that all others need
# What makes NCCL say that it starts (runner/diagnosis/logs.py).
_NCCL_LOG = (
    ("NCCL_DEBUG", "INFO"),
    ("NCCL_DEBUG_SUBSYS", "INIT,NET"),
    ("NCCL_DEBUG_FILE", f"{RESULTS}/nccl/%h.%p.log"),
)
MODERN = (8, 0)  # compute capability from which there are TF32 and bf16: Ampere
# Images a rank and step of ResNet-50 in single precision, by least memory of a device: about 90 MB an image at 224 px.
_BATCHES = ((40e9, 256), (20e9, 128), (10e9, 64), (0.0, 32))

Facts = TypeVar("Facts", bound=msgspec.Struct)


@dataclass(frozen=True)
class Ladder:
    """What a ladder is climbed with.

    Attributes:
        gpus: of its jobs on all GPUs. quick: short measurements. pretend: on processors.
    """

    gpus: int
    quick: bool = False
    pretend: bool = False

    @property
    def device(self) -> str:
        """Kind of the device that every rank must have computed on."""
        return "cpu" if self.pretend else "cuda"

    def limit_s(self, jobs: int) -> int:
        """Time limit of each of a rung's jobs, seconds; processors that others use, too, get as much as they need."""
        return RUNG_LIMIT_S if self.pretend else RUNG_LIMIT_S // jobs

    @property
    def label(self) -> str:
        """Why no figure is a claim; empty where the measurements decide that themselves."""
        return "pretend: CPU" if self.pretend else "demonstration: short measurements" if self.quick else ""


@dataclass(frozen=True)
class Job:
    """One job of a rung.

    Attributes:
        recipe: a shipped one; empty for ``program``, which ``--meter`` measures.
        gpus: ranks. options, env: as ``--set`` and ``--env`` take them.
        limit_s: its time limit, seconds.
    """

    recipe: str
    gpus: int
    options: tuple[tuple[str, str], ...] = ()
    env: tuple[tuple[str, str | None], ...] = ()
    limit_s: int = RUNG_LIMIT_S
    program: tuple[str, ...] = ()


@dataclass(frozen=True)
class JobOutcome:
    """What a finished job is worth.

    Attributes:
        facts: the records of a step of recipes/prove, by rank; empty for other recipes.
        instrumentation_share: the largest share of the window that calls took which only measure; None if unknown.
        nccl_processes: processes whose NCCL said in its log that it started.
        run: its directory.
    """

    verdict: Verdict
    facts: tuple[ProvingRecord, ...] = ()
    nccl_processes: int = 0
    instrumentation_share: float | None = None
    run: str = ""


@dataclass(frozen=True)
class Judgement:
    """How a rung ended; the fields are those of ``RungRecord``."""

    state: RungState
    reason: str = ""
    label: str = ""
    figures: dict[str, ProvenValue] = field(default_factory=dict)
    proven: tuple[str, ...] = ()
    gpus: tuple[ProvenGpu, ...] = ()
    versions: dict[str, str] = field(default_factory=dict)


Earlier = Mapping[str, RungRecord]  # the rungs before this one, by name
Figures = dict[str, ProvenValue]


class FailedError(Exception):
    """A rung failed, for these reasons."""


def require(faults: Iterable[str]) -> None:
    """Let the rung fail for these reasons, if there are any."""
    if reasons := tuple(faults):
        raise FailedError(*reasons)


@dataclass(frozen=True)
class Rung:
    """One rung: all of it is pure.

    Attributes:
        title: what it shows, for people.
        jobs: what it runs; none for one that only looks at earlier rungs.
        rule: the figures that it shows, or all of its end, from its jobs' outcomes; may raise ``FailedError``.
        needs: rungs that must have passed before it is tried.
        obstacle: why it does not apply here; empty where it does.
        is_refusable: where a check refuses its job, it does not apply.
    """

    name: str
    title: str
    jobs: Callable[[Ladder, Earlier], tuple[Job, ...]]
    rule: Callable[[Ladder, Earlier, Sequence[JobOutcome]], Figures | Judgement]
    needs: tuple[str, ...] = ()
    obstacle: Callable[[Ladder, Earlier], str] = lambda _ladder, _earlier: ""
    is_refusable: bool = False

    def judge(self, ladder: Ladder, earlier: Earlier, outcomes: Sequence[JobOutcome]) -> Judgement:
        """Its end, from its jobs' outcomes."""
        try:
            end = self.rule(ladder, earlier, outcomes)
        except FailedError as error:
            return Judgement("failed", "; ".join(error.args))
        if isinstance(end, Judgement):
            return end
        return Judgement("passed", label=ladder.label, figures=end, proven=outcomes[0].verdict.proven)


def step(
    ladder: Ladder, name: str, gpus: int, more: Mapping[str, str] | None = None, *, limit_s: int = RUNG_LIMIT_S
) -> Job:
    """The job of one step of the recipe ``prove``; ``more``: further options of it."""
    options = {"step": name, "device": ladder.device, **(more or {})}
    if ladder.quick or ladder.pretend:
        options["short"] = "true"
    return Job(STEPS, gpus, tuple(options.items()), () if ladder.pretend else _NCCL_LOG, limit_s)


def facts_of(ladder: Ladder, outcome: JobOutcome, name: str, kind: type[Facts]) -> list[Facts]:
    """The typed facts of each rank of a step, by rank. Raises FailedError where it left none."""
    if outcome.verdict.outcome != "ran":
        raise FailedError(f"verdict {outcome.verdict.outcome}", *outcome.verdict.reasons[:3])
    if elsewhere := [each.rank for each in outcome.facts if each.device_kind != ladder.device or each.step != name]:
        raise FailedError(f"ranks {elsewhere} did not do the step {name} on {ladder.device}")
    if not outcome.facts:
        raise FailedError("no record")
    try:
        return [msgspec.convert(each.facts, kind) for each in outcome.facts]
    except msgspec.ValidationError as error:
        raise FailedError(f"the record of the step {name} cannot be read: {error}") from None


def benchmark(
    ladder: Ladder, earlier: Earlier, gpus: int, options: Mapping[str, str], *, limit_s: int = RUNG_LIMIT_S
) -> Job:
    """A run of the main job: with the site's small model where the ladder pretends, else with ResNet-50.

    A single rank runs the hooks, too, unless ``options`` decides it. The precision ``amp`` is the devices' own.
    """
    chosen = {"channels-last": "false", "hooks-at-one": "true" if gpus == 1 else "false", **options}
    chosen["precision"] = precision(ladder, earlier, chosen["precision"])
    if not ladder.pretend:
        chosen |= {"batch-size": str(batch(earlier)), "device": "cuda"}
    if ladder.quick or ladder.pretend:
        chosen["demonstration"] = "true"
    return Job(BENCHMARK, gpus, tuple(chosen.items()), limit_s=limit_s)


def precision(ladder: Ladder, earlier: Earlier, wanted: str) -> str:
    """The benchmark's name of a precision; ``amp``: bf16, or fp16 on older devices."""
    if wanted != "amp":
        return wanted
    return "amp-bf16" if ladder.pretend or capability(earlier) >= MODERN else "amp-fp16"


def batch(earlier: Earlier) -> int:
    """Images a rank and step that fit on the smallest device."""
    memory = earlier[FIRST].figures["memory_bytes"]
    assert isinstance(memory, int)
    return next(images for least, images in _BATCHES if memory >= least)


def capability(earlier: Earlier) -> tuple[int, ...]:
    """The least compute capability of the devices."""
    return numbers(str(earlier[FIRST].figures["capability"]))


def numbers(text: str) -> tuple[int, ...]:
    """``9.0`` as (9, 0), for comparing."""
    return tuple(int(part) for part in text.split(".") if part.isdecimal())
