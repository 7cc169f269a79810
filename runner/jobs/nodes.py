"""Which node each rank ran on.

Host names don't tell: nodes may share one, and a container may give each rank a name of its own. So the scheduler's
name of the node counts, then the kernel's boot id, then the host name.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from itertools import zip_longest

from runner.model.records import StartRecord

_IDENTITIES: tuple[Callable[[StartRecord], str | None], ...] = (
    lambda start: start.node_name,
    lambda start: start.boot_id,
    lambda start: start.host,
)


def nodes_of(starts: Mapping[int, StartRecord], tasks_per_node: tuple[int, ...]) -> dict[int, str]:
    """The node of each rank that has started, by a name that is its own.

    What is an identity of nodes is taken only where every rank has it, and first what fits the planned
    ``tasks_per_node``: one kernel may carry several nodes (containers that are handed out as nodes), or each rank have
    a host name of its own. The name is the host's, where that tells the nodes apart.
    """
    identities = [by_rank for identity in _IDENTITIES if (by_rank := _by(identity, starts)) is not None]
    fitting = (by_rank for by_rank in identities if _fits(by_rank, tasks_per_node))
    chosen = next(fitting, identities[0] if identities else {rank: start.host for rank, start in starts.items()})
    hosts: dict[str, set[str]] = {}
    identities_of_host: dict[str, set[str]] = {}
    for rank, identity in chosen.items():
        hosts.setdefault(identity, set()).add(starts[rank].host)
        identities_of_host.setdefault(starts[rank].host, set()).add(identity)
    names = {
        identity: _name(identity, named, alone=all(len(identities_of_host[host]) == 1 for host in named))
        for identity, named in hosts.items()
    }
    return {rank: names[identity] for rank, identity in chosen.items()}


def _by(identity: Callable[[StartRecord], str | None], starts: Mapping[int, StartRecord]) -> dict[int, str] | None:
    """Rank -> identity of its node; None where a rank has none."""
    values = {rank: identity(start) for rank, start in starts.items()}
    known = {rank: value for rank, value in values.items() if value}
    return known if len(known) == len(values) else None


def _fits(by_rank: Mapping[int, str], tasks_per_node: tuple[int, ...]) -> bool:
    """Whether no node has more ranks than planned."""
    counts = sorted(Counter(by_rank.values()).values(), reverse=True)
    planned = sorted(tasks_per_node, reverse=True)
    return all(count <= room for count, room in zip_longest(counts, planned, fillvalue=0))


def _name(identity: str, hosts: set[str], *, alone: bool) -> str:
    first = min(hosts)
    if identity in hosts or (alone and len(hosts) == 1):
        return identity if identity in hosts else first
    return f"{first} ({identity[:8]})" if len(hosts) == 1 else identity[:8]
