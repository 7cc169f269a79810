"""Which worlds a run's programs formed, as far as it was seen: by what their processes left, or NCCL's log. Pure.

What counts is devices: a process of JAX has all GPUs of its launcher, one of the others a single one. A world that was
not seen is no fault: other languages, and Pythons that take no PYTHONPATH, leave nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from runner.core.text import counted
from runner.diagnosis.logs import NcclLog
from runner.jobs.collect import Evidence
from runner.model.plan import Plan

_NAMES = {"torch": "torch.distributed", "jax": "jax.distributed", "horovod": "Horovod", "mpi": "MPI"}
_MPI_STARTERS = ("mpirun", "srun", "horovodrun")


class Formed(NamedTuple):
    """Devices of each world, the largest first; none where no world was seen. ``kinds``: of who says so."""

    devices: tuple[int, ...] = ()
    kinds: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """``2 worlds of 1 device each, by torch.distributed``."""
        by = ", ".join(_NAMES.get(kind, kind) for kind in self.kinds)
        sizes = " and ".join(
            f"{counted(count, 'world')} of {counted(size, 'device')}{' each' if count > 1 else ''}"
            for size, count in sorted(Counter(self.devices).items(), reverse=True)
        )
        return f"{sizes}, by {by}"


def formed(evidence: Evidence) -> Formed:
    """The worlds. Processes with the same rank in worlds of one size are in several of them. O(processes)."""
    plan, kinds = evidence.plan, set[str]()
    ranks: dict[int, Counter[int]] = {}  # devices of a world -> ranks in worlds of that size
    for record in evidence.exits.values():
        for each in record.worlds:
            # Under torchrun and its like, MPI is what some library has loaded.
            if each.kind != "mpi" or _started_by(plan) in ("", *_MPI_STARTERS):
                devices = max(1, plan.gpus_per_task // len(record.worlds)) if each.kind == "jax" else 1
                ranks.setdefault(each.size * devices, Counter())[each.rank] += 1
                kinds.add(each.kind)
    sizes = sorted((size for size, seen in ranks.items() for _ in range(max(seen.values()))), reverse=True)
    return Formed(tuple(sizes), tuple(sorted(kinds))) if sizes else _by_nccl(evidence.nccl, plan.gpus)


def _by_nccl(log: NcclLog, gpus: int) -> Formed:
    """Processes that share a communicator are in one world, which may be larger than its communicators. Those of
    launches one after another are no worlds beside each other.
    """
    worlds: list[frozenset[tuple[str, int]]] = []
    for process in log.communicators:
        shared = [world for world in worlds if world & process]
        worlds = [world for world in worlds if world not in shared] + [process.union(*shared)]
    sizes = sorted((max(size for _, size in world) for world in worlds), reverse=True)
    is_whole = sizes == [gpus] or (len(sizes) > 1 and sum(sizes) <= gpus)
    return Formed(tuple(sizes), ("NCCL's log",)) if is_whole else Formed()


def _started_by(plan: Plan) -> str:
    return plan.starters[0].name if plan.starters else ""


def faults(evidence: Evidence) -> Iterator[str]:
    """Several worlds, where ``--world`` or a program that starts ranks asked for one."""
    plan, made = evidence.plan, formed(evidence)
    asked = plan.world if isinstance(plan.world, int) else plan.gpus if plan.world is None and _started_by(plan) else 0
    if asked and len(made.devices) > 1:
        yield f"the programs formed {made.text}, and one of {asked} was asked for: {_cause(evidence, made)}"


def is_one(evidence: Evidence) -> bool | None:
    """Whether the programs formed the world of all devices, or the one that was asked for; None where none was seen."""
    plan, made = evidence.plan, formed(evidence)
    return made.devices == (plan.world if isinstance(plan.world, int) else plan.gpus,) if made.devices else None


def proven(evidence: Evidence) -> Iterator[str]:
    """The world, where it is the one."""
    if evidence.plan.gpus > 1 and is_one(evidence):
        yield f"the programs formed {formed(evidence).text}"


def remarks(evidence: Evidence) -> Iterator[str]:
    """Another world than that of all devices, or the sign that there was none: perhaps it is meant."""
    if evidence.plan.world in ("none", "any"):
        return
    made = formed(evidence)
    if not made.devices:
        yield from _alone(evidence)
    elif not is_one(evidence):
        meant = "nothing is wrong where that is meant (--world none, --world any)"
        had = counted(evidence.plan.gpus, "GPU")
        yield f"the programs formed {made.text}, and the job had {had}: {_cause(evidence, made)}; {meant}"


def _cause(evidence: Evidence, made: Formed) -> str:
    name = _started_by(evidence.plan)
    if made.kinds == ("mpi",):
        return "MPI in the program does not take its ranks from what starts them; fix: --wireup pmix, pmi2 or mpich"
    if made.kinds == ("jax",):
        return (
            "jax.distributed.initialize was not given all processes; fix: coordinator_address MASTER_ADDR:MASTER_PORT, "
            "num_processes WORLD_SIZE and process_id RANK, or NNODES and NODE_RANK of one process a node"
        )
    if len(made.devices) == 1:
        return "no world of the other GPUs was seen; fix: ask for as many as it uses, or start a rank for each"
    if name:
        return f"each start of {name} had a world of its own; fix: give it no counts and no rendezvous"
    return "the program, or what it starts ranks with, sets its place itself; fix: RANK, WORLD_SIZE, MASTER_ADDR as set"


def _alone(evidence: Evidence) -> Iterator[str]:
    """Programs that seem to have run each in a world of its own, by what the launchers saw of them.

    A program may meet the others by ways that cannot be seen from outside, so this is no fault.
    """
    plan, tasks, exits = evidence.plan, evidence.plan.tasks, evidence.exits
    if plan.wireup == "own" and plan.gpus > 1 and not plan.starters:
        yield (
            f"no world was seen: one process a node may have left some of {plan.gpus} GPUs idle; fix: leave "
            "--wireup own out, and a rank is started for each; nothing is wrong where it uses all (--world none)"
        )
    values, ranks = exits[0].rendezvous_values, exits[0].rendezvous_ranks
    if tasks == 1 or values is None or any(record.master_port_used is not False for record in exits.values()):
        return
    advice = (
        "fix: see that it initialises Horovod or torch.distributed (`gpu-runner recipe check FILE` says what a script "
        "lacks); nothing is wrong where ranks work on their own"
    )
    if values == 0:
        yield (
            "nothing shows that the ranks' programs met: none came to the rendezvous (as Horovod does) or connected to "
            f"MASTER_PORT (as torch.distributed does), so each may have run in a world of one; {advice}"
        )
    elif ranks and ranks < tasks:
        yield (
            f"the programs of only {ranks} of {tasks} ranks came to Horovod's rendezvous: the others may each have run "
            f"in a world of one; {advice}"
        )
