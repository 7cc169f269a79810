"""Which rank of which world a task is, read from what the starter of tasks left in its environment. Pure.

Known starters, in the order in which they are tried: Slurm (srun), PALS and Hydra (PMI_*), Open MPI's mpirun, and the
plain RANK/WORLD_SIZE/LOCAL_RANK/LOCAL_WORLD_SIZE. Without any of them a task is a world of its own.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from dataclasses import dataclass
from itertools import groupby
from typing import Mapping, Tuple

Sizes = Tuple[int, ...]


class WorldError(Exception):
    """The environment does not describe a world, or not the one that was planned.

    Attributes:
        code: ``world-unknown`` or ``world-mismatch``.
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True)
class World:
    """A task's place in its job step.

    Attributes:
        rank, size: of all tasks.
        local_rank, local_size: of the tasks on this node.
        node_rank, nodes: this node's index, and how many there are.
        local_sizes: tasks of each node, by node index; its sum is ``size``.
        source: whose variables these are: ``slurm``, ``pmi``, ``ompi``, ``plain``, or ``single`` where there are none.
    """

    rank: int
    size: int
    local_rank: int
    local_size: int
    node_rank: int
    nodes: int
    local_sizes: Sizes
    source: str

    @property
    def cross_rank(self) -> int:
        """Index of this node among those that have a task of this local rank (Horovod's CROSS_RANK)."""
        return sum(1 for size in self.local_sizes[: self.node_rank] if size > self.local_rank)

    @property
    def cross_size(self) -> int:
        """How many nodes have a task of this local rank (Horovod's CROSS_SIZE)."""
        return sum(1 for size in self.local_sizes if size > self.local_rank)


def of_environment(env: Mapping[str, str], planned_local_sizes: Sizes = ()) -> World:
    """The world that the environment describes.

    Only Slurm says how many tasks the *other* nodes have; for the others it is the plan, or all nodes are alike.

    Raises:
        WorldError: ``world-unknown``, when a starter's variables are there but are incomplete.
    """
    if "SLURM_PROCID" in env:
        return _slurm(env)
    if "PMI_RANK" in env or "PALS_RANKID" in env:
        return _in_blocks(
            "pmi",
            _number(env, "PMI_RANK", "PALS_RANKID"),
            _number(env, "PMI_SIZE"),
            _number(env, "PALS_LOCAL_RANKID", "PMI_LOCAL_RANK", "MPI_LOCALRANKID"),
            _number(env, "PMI_LOCAL_SIZE", "MPI_LOCALNRANKS"),
            planned_local_sizes,
        )
    if "OMPI_COMM_WORLD_RANK" in env:
        names = ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE")
        rank, size, local_rank, local_size = (_number(env, "OMPI_COMM_WORLD_" + name) for name in names)
        return _in_blocks("ompi", rank, size, local_rank, local_size, planned_local_sizes)
    if "RANK" in env and "WORLD_SIZE" in env:
        rank, size = _number(env, "RANK"), _number(env, "WORLD_SIZE")
        local_rank = _number(env, "LOCAL_RANK") if "LOCAL_RANK" in env else rank
        local_size = _number(env, "LOCAL_WORLD_SIZE") if "LOCAL_WORLD_SIZE" in env else size
        return _in_blocks("plain", rank, size, local_rank, local_size, planned_local_sizes)
    return World(0, 1, 0, 1, 0, 1, (1,), "single")


def check(world: World, planned_size: int | None, planned_local_sizes: Sizes) -> None:
    """Compare the world with the plan.

    Raises:
        WorldError: ``world-mismatch``, with both.
    """
    if planned_size is not None and world.size != planned_size:
        raise WorldError(
            "world-mismatch",
            f"{planned_size} tasks were planned, but this task belongs to a world of {world.size} "
            f"(according to: {world.source}): it was not started by the job step that the plan describes",
        )
    # Which node comes first is the scheduler's choice: compared as a multiset.
    if planned_local_sizes and sorted(world.local_sizes) != sorted(planned_local_sizes):
        raise WorldError(
            "world-mismatch",
            f"{_list(planned_local_sizes)} tasks a node were planned, but the tasks were spread as "
            f"{_list(world.local_sizes)} (according to: {world.source})",
        )


def sizes_of(text: str) -> Sizes:
    """Slurm's tasks-per-node list as numbers: ``8(x2)`` is (8, 8), ``2,1`` is (2, 1).

    Raises:
        WorldError: ``world-unknown`` for anything else.
    """
    sizes: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"(\d{1,6})(?:\(x(\d{1,6})\))?", part.strip())
        if match is None:
            raise WorldError("world-unknown", f"not a list of tasks per node: {text!r}")
        sizes += [int(match.group(1))] * int(match.group(2) or 1)
    return tuple(sizes)


def text_of(sizes: Sizes) -> str:
    """What ``sizes_of`` reads: nodes in a row that are alike are written once, however many there are."""
    runs = ((size, sum(1 for _ in alike)) for size, alike in groupby(sizes))
    return ",".join(f"{size}(x{count})" if count > 1 else str(size) for size, count in runs)


TOKEN_SOURCES = (
    "RUNNER_RUN_ID",
    "RUNNER_JOB_ID",
    "SLURM_CLUSTER_NAME",
    "SLURM_JOB_ID",
    "SLURM_STEP_ID",
    "SLURM_RESTART_COUNT",
    "PBS_JOBID",
    "PALS_APID",
    "RUNNER_RDV_HOST",
    "RUNNER_RDV_PORT",
)


def token(env: Mapping[str, str]) -> str:
    """What distinguishes this job step from any other: 16 hex digits, equal in all its tasks.

    An identity and no secret, for the records; the rendezvous asks for ``secret``.
    """
    text = "\n".join(f"{name}={env.get(name, '')}" for name in TOKEN_SOURCES)
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:16]


def secret(env: Mapping[str, str]) -> str:
    """What only the tasks of this job step know: 32 hex digits, of its token and RUNNER_RDV_KEY, which the job's script
    makes at random.

    Raises:
        WorldError: ``world-unknown``, when there is no key.
    """
    key = env.get("RUNNER_RDV_KEY")
    if not key:
        raise WorldError("world-unknown", "RUNNER_RDV_KEY is not set, by which the ranks of a job know each other")
    return hmac.new(key.encode("utf-8", "surrogateescape"), token(env).encode(), "sha256").hexdigest()[:32]


def _slurm(env: Mapping[str, str]) -> World:
    rank = _number(env, "SLURM_PROCID")
    size = _number(env, "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "SLURM_NPROCS")
    node_rank = _number(env, "SLURM_NODEID")
    spread = env.get("SLURM_STEP_TASKS_PER_NODE") or env.get("SLURM_TASKS_PER_NODE")
    if spread is None:
        raise WorldError("world-unknown", "SLURM_PROCID is set, but SLURM_STEP_TASKS_PER_NODE is not")
    sizes = sizes_of(spread)
    if sum(sizes) != size or node_rank >= len(sizes):
        raise WorldError(
            "world-unknown",
            f"Slurm's variables contradict each other: {size} tasks as {spread}, node index {node_rank}",
        )
    return _valid(
        World(rank, size, _number(env, "SLURM_LOCALID"), sizes[node_rank], node_rank, len(sizes), sizes, "slurm")
    )


def _in_blocks(
    source: str, rank: int, size: int, local_rank: int, local_size: int, planned_local_sizes: Sizes
) -> World:
    """A world whose tasks lie node after node in rank order."""
    if local_size < 1 or (sum(planned_local_sizes) != size and size % local_size):
        raise WorldError(
            "world-unknown",
            f"{size} tasks with {local_size} on this node (according to: {source}): "
            "how many the other nodes have must be given as --local-sizes",
        )
    planned = sum(planned_local_sizes) == size
    sizes = planned_local_sizes if planned else (local_size,) * (size // local_size)
    node_rank, first = 0, 0
    while node_rank < len(sizes) - 1 and rank >= first + sizes[node_rank]:
        first += sizes[node_rank]
        node_rank += 1
    if rank - first != local_rank or sizes[node_rank] != local_size:
        raise WorldError(
            "world-mismatch" if planned else "world-unknown",
            f"rank {rank} has local rank {local_rank} of {local_size} (according to: {source}), "
            f"but {_list(sizes)} tasks a node in rank order make it {rank - first} of {sizes[node_rank]}",
        )
    return _valid(World(rank, size, local_rank, local_size, node_rank, len(sizes), sizes, source))


def _valid(world: World) -> World:
    if not (0 <= world.rank < world.size and 0 <= world.local_rank < world.local_size):
        raise WorldError(
            "world-unknown",
            f"rank {world.rank} of {world.size}, local rank {world.local_rank} of {world.local_size}"
            f" does not fit into a world (according to: {world.source})",
        )
    return world


def _number(env: Mapping[str, str], *names: str) -> int:
    number = _optional(env, *names)
    if number is None:
        raise WorldError("world-unknown", f"none of {', '.join(names)} is set")
    return number


def _optional(env: Mapping[str, str], *names: str) -> int | None:
    for name in names:
        text = env.get(name)
        if text is not None:
            if not re.fullmatch(r"\d{1,9}", text):
                raise WorldError("world-unknown", f"{name} is not a number: {text!r}")
            return int(text)
    return None


def _list(sizes: Sizes) -> str:
    return ",".join(str(size) for size in sizes)
