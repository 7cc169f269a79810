"""What must hold before a figure may be printed: the ranks are one world, on distinct devices, in step.

Equal weights alone prove nothing: ranks that train on equal data from equal seeds have them without a single message.
So the local gradients must *differ* first, and the parameters be *equal* after.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Iterable, Sequence


@dataclass(frozen=True)
class RankFacts:
    """What one rank reports; gathered from all.

    Attributes:
        rank, size: as Horovod says.
        host, device: a pair that no other rank may have, if the device is a GPU's or a part's own UUID. Any other name
            may be the same on ranks that see only their own device, and be right.
        gradients: checksum of the local gradients before the first allreduce.
        parameters: checksum of the parameters after the last step; moved: whether they differ from the first ones.
        onehot: whether an allreduce of this rank's unit vector gave all ones.
        finite: whether the last loss was.
    """

    rank: int
    size: int
    host: str
    device: str
    gradients: str
    parameters: str
    moved: bool
    onehot: bool
    finite: bool


@dataclass(frozen=True)
class Proof:
    """What holds, each by itself; ``reasons``: a sentence for each that does not."""

    world: bool
    gradients_differ: bool
    parameters_equal: bool
    parameters_moved: bool
    onehot: bool
    devices_distinct: bool
    loss_finite: bool
    reasons: tuple[str, ...]

    @property
    def holds(self) -> bool:
        return not self.reasons


def judge(facts: Sequence[RankFacts], expected_size: int, *, synchronised: bool = True) -> Proof:
    """The proof for a world that should have ``expected_size`` ranks. Pure.

    ``synchronised``: gradients are averaged; in an arm without that, parameters differ by right.
    """
    size = len(facts)
    uuids = [each.device for each in facts if each.device.startswith(("GPU-", "MIG-"))]
    checks = {
        "world": (
            size == expected_size and sorted(each.rank for each in facts) == list(range(size))
            and all(each.size == size for each in facts),
            f"the framework's world has {size} ranks, {expected_size} were started: it fell back to separate worlds",
        ),
        "gradients_differ": (
            len({each.gradients for each in facts}) == size,
            "ranks have equal local gradients: they train on the same data, so equal weights prove nothing"
            if all(each.gradients for each in facts)
            else "no finite gradient of a backward pass was seen at the optimizer's parameters (they may be copies of "
            "the model's, or the warm-up too short for a loss scale), so equal weights prove nothing",
        ),
        "parameters_equal": (
            not synchronised or len({each.parameters for each in facts}) == 1,
            "parameters differ between ranks after the run: gradients were not synchronised",
        ),
        "parameters_moved": (all(each.moved for each in facts), "parameters did not change in training"),
        "onehot": (all(each.onehot for each in facts), "an allreduce of unit vectors did not give all ones"),
        "devices_distinct": (
            len(set(uuids)) == len(uuids),
            "two ranks share a device",
        ),
        "loss_finite": (all(each.finite for each in facts), "the loss is not finite"),
    }  # fmt: skip
    return Proof(
        **{name: holds for name, (holds, _) in checks.items()},
        reasons=tuple(why for holds, why in checks.values() if not holds),
    )


def checksum(parts: Iterable[bytes]) -> str:
    """16 hex digits over the bytes of all tensors, in order."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    return digest.hexdigest()[:16]
