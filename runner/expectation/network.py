"""How long an allreduce takes, by NCCL's two algorithms. Pure.

Ring: T = L + 2 (N - 1) / N x S / B, where L = start + (2 (N - 1) - 2 (n - 1)) x hop inside + 2 (n - 1) x hop between,
for N ranks on n nodes. Tree: 2 ((g - 1) x hop inside + log2(n) x hop between) for g ranks of a node, and a bandwidth
that is a little less. NCCL takes the faster one for each message, and so does this. Source: NCCL, src/graph/tuning.cc.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Network:
    """What carries the data of one job.

    Attributes:
        ranks, nodes: of the job. per_node: the most ranks of a node.
        inside_b_s, between_b_s: bus bandwidth inside a node, and between nodes, bytes per second.
        hop_inside_s, hop_between_s: of one message, seconds. start_s: of an allreduce, seconds.
        tree_share: bus bandwidth of a tree over that of a ring.
    """

    ranks: int
    nodes: int
    per_node: int
    inside_b_s: float
    between_b_s: float
    hop_inside_s: float
    hop_between_s: float
    start_s: float
    tree_share: float

    @property
    def bus_b_s(self) -> float:
        """The bus bandwidth of a ring through all ranks: that of its slowest part."""
        if self.nodes == 1:
            return self.inside_b_s
        return min(self.inside_b_s, self.between_b_s) if self.per_node > 1 else self.between_b_s

    def latency_s(self) -> float:
        """How long an allreduce of nothing takes."""
        return self.allreduce_s(0.0)

    def allreduce_s(self, size: float) -> float:
        """How long an allreduce of so many bytes takes, seconds."""
        if self.ranks < 2:
            return 0.0
        hops, between = 2 * (self.ranks - 1), 2 * (self.nodes - 1)
        carried = 2 * (self.ranks - 1) / self.ranks * size / self.bus_b_s
        ring = self.start_s + (hops - between) * self.hop_inside_s + between * self.hop_between_s + carried
        depth = (self.per_node - 1) * self.hop_inside_s + math.log2(self.nodes) * self.hop_between_s
        return min(ring, self.start_s + 2 * depth + carried / self.tree_share)
