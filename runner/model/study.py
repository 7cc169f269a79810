"""A study: many runs with one question, and what they gave.

``Study`` is what was planned (``study.json`` in the study's directory) and never changes. ``StudyFacts`` is what is
known of it now: made from the runs' own verdicts, as ``scale``, ``status STUDY`` and ``report`` show it. Rates are in
samples (images) per second of the whole world unless a name says otherwise; shares are fractions (0.01 is 1 %).
"""

from __future__ import annotations

from collections import Counter
from datetime import datetime
from typing import Annotated, Literal, NamedTuple

import msgspec

from runner.core.invocation import PROGRAM
from runner.core.text import first_of, point_text
from runner.model.figure import AT_ONCE, Doubt, FigureKeys, OfStudy
from runner.model.job import CommandLine
from runner.model.plan import Finding
from runner.model.request import RequestRecord
from runner.model.verdict import ArmFigure, Outcome

Time = Annotated[datetime, msgspec.Meta(tz=True)]
Setting = tuple[tuple[str, str], ...]  # options of a recipe, name and value

# full: training as it is. coordination: as many tensors negotiated, a few bytes each. uncoupled: N worlds of one rank
# at once. solo: one GPU alone, and solo-hooks: the same with the gradient hooks that a larger world has.
Arm = Literal["full", "coordination", "uncoupled", "solo-hooks", "solo"]
# separate: each launch is a job of its own. one-allocation: one job of the largest size, each launch a step in it.
Way = Literal["separate", "one-allocation"]
REPEATS, ATTEMPTS = 3, 3  # by default: launches of each point, and runs that a launch may have
BASES: tuple[Arm, ...] = ("solo", "full")  # what one GPU alone gives, the first that is there
StudyState = Literal["running", "complete", "incomplete"]


class Launch(msgspec.Struct, frozen=True):
    """One independent start of the program that a study wants: the unit of repetition.

    Attributes:
        key: unique in the study, and a file name: ``g0008-full-batch-size=128-r2``.
        gpus: of the launch; one rank each. arm: the one it is named for; arms: all that its process alternates between.
        settings: options of the recipe that this point sets, name and value, beyond those of the whole study.
        repeat: from 1. place: in the order in which the launches run, from 0.
        node, device: for solo arms, which of the study's nodes (from 0) and which GPU of it; None where it is open.
    """

    key: str
    gpus: int
    arm: Arm
    repeat: int
    place: int
    arms: tuple[Arm, ...] = ()
    settings: Setting = ()
    node: int | None = None
    device: int | None = None


class Study(msgspec.Struct, frozen=True):
    """``study.json``: the question, as it was asked. Never changed after it was written.

    Attributes:
        study: its id. created: UTC, whole seconds.
        command: the command line of ``scale``, for a reader; empty from Python.
        request: what all launches share (site, recipe, image, time limit, ...), with one GPU, and the settings as they
            were given; None in studies that are older, of which the command line says it.
        gpus: sizes, rising. settings: one tuple per combination of ``--set`` values; at least one, may be empty.
        strong: the whole batch is fixed, else the batch of each GPU.
        launches: in the order of ``place``.
    """

    schema: Literal["1"]
    study: str
    created: Time
    command: CommandLine
    site: str
    recipe: str
    way: Way
    gpus: tuple[int, ...]
    arms: tuple[Arm, ...]
    settings: tuple[Setting, ...]
    repeats: int
    strong: bool
    launches: tuple[Launch, ...]
    request: RequestRecord | None = None


class WayCost(msgspec.Struct, frozen=True):
    """What a study is expected to cost one way, before anything is submitted.

    Attributes:
        jobs: that are submitted.
        gpu_hours: as expected: GPUs that the jobs have, whole nodes where they get whole ones, times their length.
        most_gpu_hours: the same by the time limits.
        wall_s: expected seconds with one launch after the other; waiting in the queue is not counted.
        notes: what else decides between the ways, one sentence each.
    """

    way: Way
    jobs: int
    gpu_hours: float
    most_gpu_hours: float
    wall_s: float
    notes: tuple[str, ...] = ()


class PlannedStudy(msgspec.Struct, frozen=True):
    """A study that was planned and not begun: a dry run, or one that a check or the budget refuses.

    Attributes:
        way: that would be taken. costs: of every way that there is; of what is left to do, where it is resumed.
        findings: of the checks, over all launches, each once.
    """

    way: Way
    launches: tuple[Launch, ...]
    costs: tuple[WayCost, ...]
    findings: tuple[Finding, ...] = ()


class ListedStudy(msgspec.Struct, frozen=True):
    """One study of a list. Keys that StudyFacts has, too, mean the same there.

    Attributes:
        launches, proven: how many.
        gaps: as ``StudyFacts``.
    """

    study: str
    directory: str
    name: str
    state: StudyState
    site: str
    recipe: str
    gpus: tuple[int, ...]
    created: Time
    launches: int
    proven: int
    gaps: tuple[str, ...] = ()


class StudyCancellation(msgspec.Struct, frozen=True):
    """The answer of ``cancel STUDY``. ``jobs``: that are being cancelled; empty where none was left."""

    study: str
    directory: str
    jobs: tuple[str, ...]


class Estimate(msgspec.Struct, frozen=True):
    """A figure with its 95 % interval over launches; low and high are None where there are too few launches."""

    value: float
    low: float | None = None
    high: float | None = None


COMES_AGAIN = ("ran", "failed")  # outcomes that another run of the same program would have, too
Scaling = Literal["weak", "strong"]
LaunchState = Literal["missing", "pending", "running", "proven", "not-proven"]


class Span(NamedTuple):
    """When and where a run ran: Unix times, 0 where one is unknown, and names of nodes, none where these are."""

    run: str
    began_s: float
    ended_s: float
    nodes: tuple[str, ...]


class LaunchFacts(FigureKeys, frozen=True):
    """A launch and its last attempt.

    Attributes:
        state: ``missing`` where no attempt was made, or the last one left no run; ``proven`` where its run is
            ``measured``. Only a proven launch has a rate, and only it enters a curve.
        run, directory: of the last attempt; empty without one. attempts: how many runs were started for it.
        why: why it is not proven, one sentence; empty else.
        figure: of the named arm. step_s: median time of a step.
        nodes: names, where recorded. gpus_by_node: how many GPUs of each, in one allocation's order, of a launch that
            has the first of its nodes and of their GPUs; empty else.
        sm_clock_mhz: mean over the ranks' GPUs in the window; None where it was not read.
        arms: of its verdict (``Verdict.arms``).
        batch: samples of a rank in a step, as the ranks recorded them, the mean of the window and of all; None where
            one recorded none, and of a figure in steps. batch_apart: the largest of the ranks' over the smallest.
            batch_varies: steps differ in it.
        device: UUID of the GPU of one GPU alone; empty where it is unknown, and of more.
    """

    launch: Launch
    state: LaunchState
    run: str = ""
    directory: str = ""
    attempts: int = 0
    outcome: Outcome | None = None
    why: str = ""
    step_s: float | None = None
    nodes: tuple[str, ...] = ()
    gpus_by_node: tuple[int, ...] = ()
    sm_clock_mhz: float | None = None
    arms: tuple[ArmFigure, ...] = ()
    batch: float | None = None
    batch_apart: float = 1.0
    batch_varies: bool = False
    device: str = ""


class PointFacts(msgspec.Struct, frozen=True):
    """All launches of one size, arm and setting.

    Attributes:
        proven, wanted: number of launches.
        images_per_s: over the proven launches; None where there is none.
        efficiency_of_one: against one GPU alone (solo, else the full arm of one GPU). efficiency_of_uncoupled: against
            as many GPUs at once that do not communicate. None without that base.
        scaling: what the efficiency against one GPU is of, by the batches that the ranks recorded: ``weak`` where a GPU
            has the same at every size, ``strong`` where all GPUs together have. why: there is none though both rates
            are known.
        spread: standard deviation between launches over their mean; None below 2.
        launches_needed: to find a change of 1, 2 and 5 % ("0.01" ...), each side, 80 % power; without
            those that 10,000 do not find, and empty without a spread.
        doubts: of the figures that it is made of.
    """

    gpus: int
    arm: Arm
    settings: Setting
    proven: int
    wanted: int
    images_per_s: Estimate | None = None
    efficiency_of_one: Estimate | None = None
    efficiency_of_uncoupled: Estimate | None = None
    spread: float | None = None
    launches_needed: dict[str, int] = {}
    doubts: tuple[Doubt, ...] = ()
    scaling: Scaling | None = None
    why: str = ""

    @property
    def unequal(self) -> tuple[Doubt, ...]:
        """What its launches do not have in common, without what matters to its efficiency alone."""
        return tuple(each for each in self.doubts if each.code == "unequal" and not each.words.startswith("efficiency"))


class SingleGpus(msgspec.Struct, frozen=True):
    """How the GPUs of one allocation differ, each of them alone.

    Attributes:
        arm: ``solo`` or ``solo-hooks``.
        gpus, wanted: number of GPUs that have a rate, and that shall have one.
        launches: proven ones of the GPU that has the fewest, without those that have none.
        spread: standard deviation between GPUs over their mean, each by the mean of its launches; None below 2.
        slowest: which one, empty below 2. slowest_by: share that it is below the mean.
        missing: GPUs with launches that are not proven, by name. demonstration: as of ``StudyFacts``.
    """

    arm: Arm
    settings: Setting
    gpus: int
    wanted: int
    launches: int = 0
    spread: float | None = None
    slowest: str = ""
    slowest_by: float | None = None
    missing: tuple[str, ...] = ()
    demonstration: str = ""


class LossRow(msgspec.Struct, frozen=True):
    """One part of what is lost between one GPU alone and all of them.

    Attributes:
        name: ``gradient hooks``, ``node, power and input``, ``waiting for slower ranks``, ``coordination``,
            ``exposed communication``, ``compute slowed by overlap``.
        loss: share of the ideal throughput that it takes; rows and efficiency add up to 1.
        clock_ratio: of the arms' SM clocks, later over earlier; None where a clock is unknown.
        note: ``includes power`` where the clocks differ by more than 1 %, or what else the row holds; empty else.
        share: of the logarithm of the whole loss; None where the whole loss is not clearly above 0.
    """

    name: str
    loss: Estimate
    clock_ratio: float | None = None
    note: str = ""
    share: Estimate | None = None


class Loss(msgspec.Struct, frozen=True):
    """Where the rest goes at one size. ``why``: why there is no attribution; then ``rows`` is empty. ``demonstration``:
    as of ``StudyFacts``.
    """

    gpus: int
    settings: Setting
    efficiency: Estimate | None = None
    rows: tuple[LossRow, ...] = ()
    why: str = ""
    demonstration: str = ""


class StudyFacts(msgspec.Struct, frozen=True):
    """A study now: the JSON of ``scale`` and ``status STUDY``, and all that a report shows but the runs' own records.

    Attributes:
        state: ``running`` while a job of it is in the queue or runs; ``complete`` where every launch is proven, and
            nothing that was launched is missing.
        demonstration: why no figure of it is a performance claim; empty where they are.
        gpu_hours: that its jobs have used so far, by their own records.
        single_gpus: of its GPUs alone, in one allocation.
        differences: of launches in one allocation: what was not the same for them, a sentence each, so that comparing
            them has no verdict. switches: node -> its leaf switch, where it is known.
        gaps: what was launched and is not there any more, a sentence each: a figure without it may be a chosen one.
    """

    study: str
    directory: str
    name: str
    state: StudyState
    site: str
    recipe: str
    way: Way
    strong: bool
    created: Time
    launches: tuple[LaunchFacts, ...]
    points: tuple[PointFacts, ...]
    losses: tuple[Loss, ...]
    demonstration: str = ""
    gpu_hours: float = 0.0
    single_gpus: tuple[SingleGpus, ...] = ()
    differences: tuple[str, ...] = ()
    switches: dict[str, str] = {}
    gaps: tuple[str, ...] = ()

    @property
    def doubts_of_points(self) -> tuple[Doubt, ...]:
        """What no figure has that they are made of, each once, with their names where not all have it; that launches
        ran at the same time once for all of them, and last, as a queue does so.
        """
        of: dict[str, list[str]] = {}
        for point in self.points:
            name = f"{point_text(point.gpus, point.settings)}{'' if point.arm == 'full' else f' ({point.arm})'}"
            for doubt in (each for each in point.doubts if each.code == "unequal"):
                of.setdefault(doubt.words, []).append(name)
        beside = [words for words in of if words.endswith(AT_ONCE) and not words.startswith("efficiency")]
        lines = [
            words if len(names) == len(self.points) else f"{first_of(names, 2)}: {words}"
            for words, names in of.items()
            if not words.endswith(AT_ONCE)
        ]
        lines += [words + ", and others" * (len(beside) > 1) for words in beside[:1]]
        return tuple(Doubt("unequal", line) for line in lines)

    @property
    def of_figures(self) -> OfStudy:
        """What it says of the figures of its runs."""
        points = {each.launch.key: (each.launch.gpus, each.launch.arm, each.launch.settings) for each in self.launches}
        lacks = Counter(points[each.launch.key] for each in self.launches if each.state == "not-proven")
        unequal = {(each.gpus, each.arm, each.settings): each.unequal for each in self.points}
        return OfStudy(
            self.gaps,
            self.demonstration,
            {key: lacks[point] for key, point in points.items()},
            {key: unequal.get(point, ()) for key, point in points.items()},
        )

    @property
    def next_step(self) -> str:
        """What to do about one that is incomplete: another run of the same program would only repeat what it does."""
        if self.gaps and all(each.state == "proven" for each in self.launches):
            return "no further run closes a gap: cite its figures with it, or begin a new study"
        again = next((each for each in self.launches if each.state != "proven" and each.outcome in COMES_AGAIN), None)
        if again is None:
            return f"{PROGRAM} scale --resume {self.study}"
        return f"{PROGRAM} show {again.run}; it would end so again: correct the program, and begin a new study"
