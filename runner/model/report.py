"""What a report shows of a study, or of runs: the JSON of ``report``.

Rates are in images per second, or in what else the verdicts count; shares are fractions (0.01 is 1 %); times are
seconds.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from runner.model.expectation import Comparison, Signs
from runner.model.figure import Doubt, FigureKeys
from runner.model.output import RunFacts
from runner.model.study import Setting, StudyFacts, Time


class RankFacts(msgspec.Struct, frozen=True):
    """A rank of a measured run.

    Attributes:
        node: its name. local_rank: on this node.
        compute_s: median over the window's quarters of its compute time of a step.
        relative: its excess over the median of the ranks that are not named as slow (0.06: 6 % slower), in at least
            three of the four quarters.
        slow: the rank, or its node, was named as slow; of a demonstration, which names none: it stands out.
    """

    rank: int
    node: str
    local_rank: int
    compute_s: float
    relative: float
    slow: bool = False


class StepTimes(msgspec.Struct, frozen=True):
    """Step times of the whole world over the window, by the slowest rank at each end of a group.

    Attributes:
        groups: of steps in the window. groups_per_point: how many each point stands for.
        at_s: end of each point, seconds after the common start.
        middle_s, low_s, high_s: median, least and greatest step time in it.
        cut_s: before this the figure counts nothing.
    """

    groups: int
    groups_per_point: int
    at_s: tuple[float, ...]
    middle_s: tuple[float, ...]
    low_s: tuple[float, ...]
    high_s: tuple[float, ...]
    cut_s: float = 0.0


class Row(FigureKeys, frozen=True):
    """A run, in one line of the report.

    Attributes:
        key: of the launch in its study, else the run's id.
        arm, repeat: of a launch of a study; empty and 0 else.
        state: ``proven`` where its figure is; else the verdict's outcome, or the state.
        values: of a run of a sweep, by their names.
        figure: only of a proven run. per_gpu: its value by GPU.
        low, high: interval of the figure within this run (95 %): its precision, and no claim.
        why: why it is not proven; empty where it is.
    """

    key: str
    run: str
    directory: str
    gpus: int
    state: str
    arm: str = ""
    settings: Setting = ()
    repeat: int = 0
    per_gpu: float | None = None
    low: float | None = None
    high: float | None = None
    step_s: float | None = None
    sm_clock_mhz: float | None = None
    nodes: tuple[str, ...] = ()
    why: str = ""
    values: dict[str, str] = msgspec.field(default_factory=dict)


class NamedFact(msgspec.Struct, frozen=True):
    """One line of the environment: a name and its value; a value that differs between runs lists each."""

    name: str
    value: str


class RunReport(msgspec.Struct, frozen=True):
    """A run in detail.

    Attributes:
        ranks: empty where not every rank recorded its compute time. slow_nodes, slow_ranks: excess by name; of a
            demonstration, which names none as slow, what stands out.
        cannot_tell: nothing is named, and the slowest rank is at least 2 % slower; None where nothing was recorded.
        removable: share of a step that the named ranks cost at most.
        steps: None where the run holds no figure.
        signs: what it left that can explain a low figure; None where that is unknown.
        script: the job's script, with ``***`` for what looks like a secret; empty where it cannot be read.
        problem: why there is no more about it; empty else.
    """

    row: Row
    facts: RunFacts | None = None
    ranks: tuple[RankFacts, ...] = ()
    slow_nodes: dict[str, float] = {}
    slow_ranks: dict[str, float] = {}
    cannot_tell: bool | None = None
    removable: float = 0.0
    steps: StepTimes | None = None
    signs: Signs | None = None
    environment: tuple[NamedFact, ...] = ()
    script: str = ""
    problem: str = ""


class AttemptTimes(msgspec.Struct, frozen=True):
    """An attempt of a chain (``submit --until-done``).

    Attributes:
        began: its job's script. end: how it ended; empty while that is unknown.
        start_up_s: from then until its first step: a file ``first-step`` in the run directory, which the program may
            leave; else until all ranks had met.
        kept_s: from then until the newest checkpoint that the next attempt has, or the end where the program was done.
        lost_s: from then until its end.
    """

    attempt: int
    run: str
    began: Time | None
    start_up_s: float
    kept_s: float
    lost_s: float
    end: str


class ChainTimes(msgspec.Struct, frozen=True):
    """Where the time of a chain's attempts went; the sums are of those that have ended.

    Attributes:
        goodput: kept / (kept + lost): what counts of the time of all attempts but their start-up; None without any.
        by_first_step: each attempt left ``first-step``; else what a program does before its first step is no start-up.
    """

    chain: str
    name: str
    attempts: tuple[AttemptTimes, ...]
    start_up_s: float
    kept_s: float
    lost_s: float
    goodput: float | None
    by_first_step: bool


class Highlight(msgspec.Struct, frozen=True):
    """One thing to see first: a name, its value, and what it means in a few words."""

    name: str
    value: str
    note: str = ""


class Report(msgspec.Struct, frozen=True):
    """All that a report shows.

    Attributes:
        made: UTC, whole seconds. version: of gpu-runner.
        demonstration: why no figure is a performance claim; empty where they are.
        study: None where single runs are reported.
        unit: what the figures count; of runs that count differently all of them (``images or tokens``).
        rows: all runs. detailed: of these, those that are shown with ranks, steps and script.
        environment: of all runs together. cite: sentences to quote.
        expected: of a study, its points against the ranges that the cost model gives; else why_not_expected.
        files: what was written, by name. doubts: about the figures of the rows, together.
        chains: those that rows are attempts of.
    """

    schema: Literal["1"]
    title: str
    subtitle: str
    made: Time
    version: str
    demonstration: str
    unit: str
    study: StudyFacts | None
    rows: tuple[Row, ...]
    detailed: tuple[RunReport, ...]
    highlights: tuple[Highlight, ...]
    environment: tuple[NamedFact, ...]
    cite: tuple[str, ...]
    expected: tuple[Comparison, ...] = ()
    why_not_expected: str = ""
    files: tuple[str, ...] = ()
    doubts: tuple[Doubt, ...] = ()
    chains: tuple[ChainTimes, ...] = ()
