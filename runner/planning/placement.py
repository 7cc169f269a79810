"""How many ranks on which node."""

from __future__ import annotations

from collections.abc import Sequence

from runner.errors import RefusedError, UsageError
from runner.model.site import NodeShape

MOST_NODES = 10_000  # more than any cluster of today has


def place(gpus: int, nodes: int | None, shape: NodeShape) -> tuple[int, ...]:
    """Ranks per node, one rank per GPU, in node order.

    The fewest nodes that hold them, or ``nodes``; an equal split where it divides, else full nodes first with at
    least one rank on every node.

    Raises:
        UsageError: a number below one, or more nodes than ranks.
        RefusedError: more than the site's nodes hold.
    """
    if gpus < 1:
        raise UsageError(f"{gpus} GPUs cannot be asked for", where="--gpus", fix="ask for one or more")
    if nodes is not None and nodes < 1:
        raise UsageError(f"{nodes} nodes cannot be asked for", where="--nodes", fix="ask for one or more")
    if nodes is not None and nodes > gpus:
        raise UsageError(
            f"{gpus} GPUs cannot be spread over {nodes} nodes",
            where="--nodes",
            fix=f"ask for {gpus} nodes or fewer",
        )
    wanted = nodes if nodes is not None else -(-gpus // shape.gpus)
    if gpus > wanted * shape.gpus:
        raise RefusedError(
            f"{gpus} GPUs do not fit on {wanted} nodes of {shape.gpus}",
            where="--nodes",
            fix=f"ask for {-(-gpus // shape.gpus)} nodes or more",
        )
    if shape.count is not None and wanted > shape.count:
        raise RefusedError(
            f"{gpus} GPUs need {wanted} nodes, and the site has {shape.count} of {shape.gpus} GPUs",
            where="--gpus",
            fix=f"ask for {shape.count * shape.gpus} GPUs or fewer",
        )
    if wanted > MOST_NODES:
        raise RefusedError(
            f"{gpus} GPUs need more than {MOST_NODES} nodes of {shape.gpus}", where="--gpus", fix="ask for fewer"
        )
    return spread(gpus, (shape.gpus,) * wanted)


def spread(gpus: int, room: Sequence[int]) -> tuple[int, ...]:
    """Ranks for nodes with room for so many, which hold them all: an equal split where it divides and fits, else full
    nodes first with at least one rank on every node.
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
