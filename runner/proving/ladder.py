"""The parts of a ladder: what it is climbed with, its rungs, and what their jobs leave. Frozen data, no I/O."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from runner.model.records import ProvingRecord
from runner.model.verdict import Outcome, ProvenGpu, ProvenValue, RungRecord, RungState

RUNG_LIMIT_S = 9 * 60
PRETEND = "pretend: CPU"
_QUICK = "demonstration: short measurements"


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
        return PRETEND if self.pretend else _QUICK if self.quick else ""


@dataclass(frozen=True)
class Job:
    """One job of a rung.

    Attributes:
        recipe: a shipped one. gpus: ranks. options, env: as ``--set`` and ``--env`` take them.
        limit_s: its time limit, seconds.
    """

    recipe: str
    gpus: int
    options: tuple[tuple[str, str], ...] = ()
    env: tuple[tuple[str, str | None], ...] = ()
    limit_s: int = RUNG_LIMIT_S


@dataclass(frozen=True)
class JobOutcome:
    """What a finished job is worth.

    Attributes:
        facts: the records of a step of recipes/prove, by rank; empty for other recipes.
        instrumentation_share: the largest share of the window that calls took which only measure; None if unknown.
        nccl_processes: processes whose NCCL said in its log that it started.
        run: its directory.
    """

    outcome: Outcome
    reasons: tuple[str, ...] = ()
    proven: tuple[str, ...] = ()
    images_per_s: float | None = None
    precision: tuple[float, float] | None = None
    steady: bool | None = None
    demonstration: str = ""
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


Obstacle = Callable[[Ladder, Earlier], str]  # why a rung does not apply; empty where it does


def no_obstacle(_ladder: Ladder, _earlier: Earlier) -> str:
    """Of a rung that applies everywhere."""
    return ""


@dataclass(frozen=True)
class Rung:
    """One rung: all of it is pure.

    Attributes:
        title: what it shows, for people.
        jobs: what it runs; none for one that only looks at earlier rungs.
        judge: its end, from its jobs' outcomes.
        needs: rungs that must have passed before it is tried.
        obstacle: why it does not apply here; empty where it does.
    """

    name: str
    title: str
    jobs: Callable[[Ladder, Earlier], tuple[Job, ...]]
    judge: Callable[[Ladder, Earlier, Sequence[JobOutcome]], Judgement]
    needs: tuple[str, ...] = ()
    obstacle: Obstacle = no_obstacle


def failed(*reasons: str) -> Judgement:
    """The judgement for these reasons."""
    return Judgement("failed", "; ".join(reasons))
