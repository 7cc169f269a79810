"""How many ranks on which node."""

from __future__ import annotations

from collections.abc import Sequence

from runner.errors import RefusedError, UsageError
from runner.model.site import NodeShape
from runner.text import counted, gpus_text

MOST_NODES = 10_000  # more than any cluster has today


def place(gpus: int, nodes: int | None, shape: NodeShape) -> tuple[int, ...]:
    """Ranks per node, one rank per GPU, in node order.

    The fewest nodes that hold them, or ``nodes``; an equal split where it divides, else full nodes first with at
    least one rank on every node.

    Raises:
        UsageError: a number below one, or more nodes than ranks.
        RefusedError: more than the site's nodes hold.
    """
    if gpus < 1:
        raise UsageError(f"{gpus} GPUs are not possible", where="--gpus", fix="request one or more")
    if nodes is not None and nodes < 1:
        raise UsageError(f"{nodes} nodes are not possible", where="--nodes", fix="request one or more")
    if nodes is not None and nodes > gpus:
        raise UsageError(
            f"{gpus_text(gpus)} cannot be spread over {nodes} nodes",
            where="--nodes",
            fix=f"request {counted(gpus, 'node')} or fewer",
        )
    needed = nodes if nodes is not None else -(-gpus // shape.gpus)
    if gpus > needed * shape.gpus:
        raise RefusedError(
            f"{gpus} GPUs do not fit on {counted(needed, 'node')} of {shape.gpus}",
            where="--nodes",
            fix=f"request {counted(-(-gpus // shape.gpus), 'node')} or more",
        )
    if shape.count is not None and needed > shape.count:
        raise RefusedError(
            f"{gpus} GPUs need {needed} nodes; this site has {shape.count} ({gpus_text(shape.count * shape.gpus)})",
            where="--gpus",
            fix=f"request {gpus_text(shape.count * shape.gpus)} or fewer",
        )
    if needed > MOST_NODES:
        raise RefusedError(
            f"{gpus} GPUs need more than {MOST_NODES} nodes of {shape.gpus}", where="--gpus", fix="request fewer"
        )
    return spread(gpus, (shape.gpus,) * needed)


def spread(gpus: int, room: Sequence[int]) -> tuple[int, ...]:
    """Ranks of each node, whose rooms together hold them all: an equal split where it divides and fits, else full nodes
    first with at least one rank on every node.
    """
    equal, rest = divmod(gpus, len(room))
    if not rest and equal <= min(room):
        return (equal,) * len(room)
    placed: list[int] = []
    left = gpus
    for after, most in zip(range(len(room) - 1, -1, -1), room, strict=True):
        here = min(most, left - after)
        placed.append(here)
        left -= here
    return tuple(placed)
