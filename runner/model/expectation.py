"""What a run should reach: by a reference or by the cost model, and how a measured figure compares with it."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from runner.model.figure import Doubt
from runner.model.plan import Finding
from runner.model.request import Transport
from runner.model.study import Estimate

_Value = Annotated[float, msgspec.Meta(gt=0.0, le=1e20)]
_Lower = Annotated[float, msgspec.Meta(gt=-1.0, le=0.0)]
_Upper = Annotated[float, msgspec.Meta(ge=0.0, le=1e6)]
_Date = Annotated[str, msgspec.Meta(pattern=r"^\d{4}-\d{2}-\d{2}\Z")]
_Text = Annotated[str, msgspec.Meta(min_length=1)]


class Reference(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One figure, where it holds, and where it is from.

    Attributes:
        site, recipe, gpus: of the runs that it is for. options: of the recipe, which these runs must have, too.
        value: in ``unit``. lower, upper: how far a figure may lie from it, shares: -0.05 is 5 % below; without an
            upper one no figure is too high.
        source: a URL, a document, or a run's id. date: of that, YYYY-MM-DD.
    """

    site: _Text
    recipe: _Text
    gpus: Annotated[int, msgspec.Meta(ge=1)]
    value: _Value
    unit: Literal[
        "images/s", "samples/s", "tokens/s", "steps/s", "images/s/GPU", "samples/s/GPU", "tokens/s/GPU", "steps/s/GPU"
    ]
    lower: _Lower
    source: _Text
    date: _Date
    upper: _Upper | None = None
    options: dict[str, str | int | float | bool] = {}


class References(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The file."""

    references: tuple[Reference, ...]


Judgement = Literal["good", "below", "cannot tell", ""]


class ComparedSide(msgspec.Struct, frozen=True):
    """One side at one point.

    Attributes:
        runs: ids of its launches, all measured, in the order in which they ran.
        not_proven: how many further launches are not measured, and were left out.
        images_per_s: geometric mean over the launches, in ``unit`` per second.
        unit: images; samples, tokens or steps of a user's program. doubts: about their figures.
    """

    runs: tuple[str, ...]
    not_proven: int
    images_per_s: float
    unit: str = "images"
    doubts: tuple[Doubt, ...] = ()


class ComparedPoint(msgspec.Struct, frozen=True):
    """B against A at one number of GPUs and one setting.

    Attributes:
        settings: options of the recipe that a study set for it, ``NAME=VALUE``; empty for runs.
        order: the side of each launch, as they ran: ``ABBAAB``.
        verdict: ``faster`` or ``slower`` (the 95 % interval of the change excludes 0), with ``, within the margin``
            where it is small; ``equivalent`` (the 90 % interval lies within the margin); ``no verdict``.
        change: of B against A. low, high: its 95 % interval; null for few launches, or an order out of balance.
        why: there is no verdict.
        spread: of one launch, standard deviation; null where it is unknown.
        launches_needed: of each side, to find a change of 1, 2 and 5 % with that spread, 80 % power; without
            those that 10,000 do not find, and empty without a spread.
        judgement: by ``--fail-below``; empty without. ``below`` ends with exit code 7, ``cannot tell`` with 9.
    """

    gpus: int
    settings: tuple[str, ...]
    first: ComparedSide
    second: ComparedSide
    order: str
    verdict: str
    change: float
    low: float | None
    high: float | None
    why: str
    spread: float | None
    launches_needed: dict[str, int]
    judgement: Judgement


class AgainstReference(msgspec.Struct, frozen=True):
    """A figure against its reference.

    Attributes:
        value, unit, at_least, at_most: of the reference; the limits in its unit, at_most null where it has none.
        source, date: where the reference is from. file: that holds it.
        figure: in the same unit, geometric mean over the runs. low, high: its 95 % interval; null where there is none.
        interval_of: what the interval covers: ``launches`` (3 or more), ``this run``, or ``none``.
        judgement: ``below`` (exit 7): the interval, or the figure where there is none, lies wholly below ``at_least``;
            ``cannot tell`` (exit 9): the interval holds it.
        above: it lies wholly above ``at_most``. doubts: about the runs' figures.
        settings: ``NAME=VALUE`` of the point in its study.
    """

    runs: tuple[str, ...]
    gpus: int
    value: float
    unit: str
    at_least: float
    at_most: float | None
    source: str
    date: str
    file: str
    figure: float
    low: float | None
    high: float | None
    interval_of: Literal["launches", "this run", "none"]
    judgement: Judgement
    above: bool
    doubts: tuple[Doubt, ...] = ()
    settings: tuple[str, ...] = ()


class Compared(msgspec.Struct, frozen=True):
    """The answer of ``compare``.

    Attributes:
        first, second: as typed; second is empty where a figure was held against a reference.
        margin, fail_below: as requested; fail_below null where it was not.
        points: one for runs; of studies one for each point that both have.
        references: one for each point that was held against a reference.
        differences: what differs between the sides' plans: ``plan program``, ``environment NCCL_ALGO``.
        demonstration: why none of it is a performance claim; empty where it is.
        findings: what makes the sides incomparable; those that were forced only warn.
        missing: points of which a side has no proven launch, a sentence each.
    """

    first: str
    second: str
    margin: float
    fail_below: float | None
    points: tuple[ComparedPoint, ...]
    references: tuple[AgainstReference, ...]
    differences: tuple[str, ...]
    demonstration: str
    findings: tuple[Finding, ...]
    missing: tuple[str, ...] = ()

    @property
    def has_limit(self) -> bool:
        """Whether something decides between good and bad."""
        return bool(self.references) or self.fail_below is not None


class Range(msgspec.Struct, frozen=True):
    """A value that is not known exactly: ``low`` <= ``value`` <= ``high``."""

    low: float
    value: float
    high: float


class Input(msgspec.Struct, frozen=True):
    """One number that the expectation rests on.

    Attributes:
        name: as ``--assume`` takes it. unit: of the three numbers; empty for a share or a count.
        source: where the number comes from; with the word ``assumed`` or ``unconfirmed`` where nothing better is known.
    """

    name: str
    low: float
    value: float
    high: float
    unit: str
    source: str


class Sensitivity(msgspec.Struct, frozen=True):
    """What the throughput does if one input were 20 % less, or 20 % more: 0.01 is 1 % more throughput."""

    name: str
    less: float
    more: float


Bound = Literal["compute", "communication", "input"]


class ExpectedPoint(msgspec.Struct, frozen=True):
    """One number of GPUs.

    Attributes:
        ranks_per_node: the most of a node.
        images_per_s: samples per second of the whole world. efficiency: of as many times one GPU alone.
        step_s: expected time of a step. allreduce_s: of all its allreduces together, were they alone; exposed_s: the
            part of it that no computing hides; waiting_s: for the slowest of the ranks.
        bound: what takes most of the loss: ``input`` where the input pipeline is the limit, ``communication`` where
            more than a tenth of the step is exposed communication, else ``compute``.
        measured_allreduce: the times of allreduces were measured on as many ranks, else they are calculated.
        no_alarm: why a figure below the range is no alarm; empty where it is one.
        sensitivities: the largest first.
    """

    gpus: int
    nodes: int
    ranks_per_node: int
    images_per_s: Range
    efficiency: Range
    step_s: float
    allreduce_s: float
    exposed_s: float
    waiting_s: float
    bound: Bound
    measured_allreduce: bool
    sensitivities: tuple[Sensitivity, ...] = ()
    no_alarm: str = ""


class Expectation(msgspec.Struct, frozen=True):
    """The JSON of ``expect``.

    Attributes:
        settings: what the model, batch, precision and way to reduce are, name and value.
        inputs: all numbers that went in.
        notes: what a reader must know, one sentence each.
    """

    site: str
    recipe: str
    settings: tuple[tuple[str, str], ...]
    points: tuple[ExpectedPoint, ...]
    inputs: tuple[Input, ...]
    notes: tuple[str, ...] = ()


class Signs(msgspec.Struct, frozen=True):
    """What one run left that can explain a low figure. None and empty: unknown.

    Attributes:
        nodes: of the run. planned: transport that the site plans.
        networks: as NCCL's log names them. kinds: their classes of transport.
        adapters: ports that NCCL used, by its log; planned_adapters: of a node, by the site's file.
        with_gdr, without_gdr: connections between nodes with and without GPUDirect RDMA.
        peer_to_peer, shared_memory: connections inside nodes from GPU to GPU, and through the host's memory.
        slow_ranks, slow_nodes: that were slow for most of the run, with their excess (0.05 is 5 % slower).
        removable: share of the step that they cost at most. judged_ranks: all ranks recorded their compute time.
        real_data: the run read data; False for synthetic data.
    """

    nodes: int
    planned: Transport | None = None
    networks: tuple[str, ...] = ()
    kinds: tuple[Transport, ...] = ()
    adapters: tuple[str, ...] = ()
    planned_adapters: int | None = None
    with_gdr: int = 0
    without_gdr: int = 0
    peer_to_peer: int = 0
    shared_memory: int = 0
    slow_ranks: tuple[tuple[int, float], ...] = ()
    slow_nodes: tuple[tuple[str, float], ...] = ()
    removable: float = 0.0
    judged_ranks: bool = False
    real_data: bool | None = None


class Cause(msgspec.Struct, frozen=True):
    """A reason why a run may fall short.

    Attributes:
        name: ``sockets instead of RDMA``, ``one network adapter``, ``host memory instead of NVLink``,
            ``no GPUDirect RDMA``, ``slow ranks``, ``input pipeline``.
        state: ``shown`` by the run's own records, ``possible`` where they do not tell, ``excluded`` by them.
        evidence: what they show, one sentence each. fix: what to do about it.
    """

    name: str
    state: Literal["shown", "possible", "excluded"]
    evidence: tuple[str, ...]
    fix: str


class Comparison(msgspec.Struct, frozen=True):
    """A measured figure against the expected range.

    Attributes:
        state: ``below``: the whole measured interval lies below the range, which is the alarm; ``above``: above it;
            ``within``: they overlap; ``cannot tell``: the measured figure has no interval, or lies below a range that
            published figures have not confirmed for such GPUs.
        why: one sentence. causes: where ``below``: those shown first, then those that are possible, then the excluded.
    """

    gpus: int
    measured: Estimate
    expected: Range
    state: Literal["below", "within", "above", "cannot tell"]
    why: str
    causes: tuple[Cause, ...] = ()
