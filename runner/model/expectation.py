"""What a run on so many GPUs should reach, what that rests on, and how a measured figure compares with it."""

from __future__ import annotations

from typing import Literal

import msgspec

from runner.model.names import Transport
from runner.model.study import Estimate


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
            ``within``: they overlap; ``cannot tell``: the measured figure has no interval.
        why: one sentence. causes: where ``below``: those shown first, then those that are possible, then the excluded.
    """

    gpus: int
    measured: Estimate
    expected: Range
    state: Literal["below", "within", "above", "cannot tell"]
    why: str
    causes: tuple[Cause, ...] = ()
