"""Whether launches that are compared ran on the same: node, GPU, processors and ports of the fabric, rank by rank.

Each rank has a place in the study's allocation: which of its nodes, and which GPU there. By the ranks' own start
records a place must be the same in every launch that has it. Else the launches differ by more than their size and their
arm, and a comparison of them has no verdict.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from runner.jobs.directory import Run
from runner.model.plan import LaunchPlace

Place = tuple[int, int]  # number of the node in the allocation's order, number of the GPU there; both from 0


@dataclass(frozen=True)
class RankFacts:
    """A rank by its start record.

    Attributes:
        node: its name. gpu: UUID; empty without one. cpus: processors that it may run on, in the kernel's list format.
        ports: of the fabric, near its GPU. cuda: it computes on a GPU.
        sharing: ranks of its launch on that node that have the same processors, itself among them.
    """

    node: str
    gpu: str
    cpus: str
    ports: tuple[str, ...]
    cuda: bool = False
    sharing: int = 1


def differences(launches: Mapping[str, Mapping[Place, RankFacts]]) -> tuple[str, ...]:
    """What is not the same in all launches, a sentence for each kind; empty where nothing differs. Pure.

    Args:
        launches: by their keys, in their order: the ranks by their places.
    """
    first: dict[Place, tuple[str, RankFacts]] = {}
    found: dict[str, list[str]] = {}
    for key, ranks in launches.items():
        for place, facts in sorted(ranks.items(), key=lambda each: each[0]):
            before_key, before = first.setdefault(place, (key, facts))
            for kind, one, other in _unequal(before, facts):
                number, gpu = place
                sentence = f"GPU {gpu} of node {number}: {kind} {one} in {before_key}, {other} in {key}"
                found.setdefault(kind, []).append(sentence)
    return tuple(_with_count(each) for each in found.values())


def of_runs(runs: Iterable[tuple[str, Run]]) -> tuple[str, ...]:
    """The differences between runs that have ended, given with the keys of their launches."""
    return differences({key: dict(_ranks(run)) for key, run in runs})


def _unequal(one: RankFacts, other: RankFacts) -> Iterator[tuple[str, str, str]]:
    if one.node != other.node:  # then all else may differ, too
        yield "node", one.node, other.node
        return
    if one.gpu != other.gpu:
        yield "UUID", one.gpu or "none", other.gpu or "none"
    if one.cpus != other.cpus:
        yield "processors", one.cpus or "unknown", other.cpus or "unknown"
    elif one.cuda and one.sharing != other.sharing:
        yield "ranks that share its processors:", str(one.sharing), str(other.sharing)
    if one.ports != other.ports:
        yield "ports", ", ".join(one.ports) or "none", ", ".join(other.ports) or "none"


def _with_count(sentences: Sequence[str]) -> str:
    more = len(sentences) - 1
    return sentences[0] + (f" (and {more} more)" if more else "")


def _ranks(run: Run) -> Iterator[tuple[Place, RankFacts]]:
    plan = run.plan
    place = (plan.launch if plan else None) or LaunchPlace()
    starts = run.records.starts.values()
    together = sharing([(start.node_rank, start.cpus) for start in starts])
    for start, count in zip(starts, together, strict=True):
        number = place.first_node + start.node_rank
        gpu = (place.first_gpu + start.local_rank) % max(place.node_gpus, 1)
        yield (
            (number, gpu),
            RankFacts(
                start.node_name or start.host,
                start.device_uuid or "",
                start.cpus,
                start.device_ports,
                start.device_kind == "cuda",
                count,
            ),
        )


def sharing(ranks: Sequence[tuple[int, str]]) -> tuple[int, ...]:
    """For each rank, given by its node and its processors, how many of the same node have the very same. Pure."""
    counts: dict[tuple[int, str], int] = {}
    for each in ranks:
        counts[each] = counts.get(each, 0) + 1
    return tuple(counts[each] for each in ranks)
