"""The record that ``prove`` leaves: what was proven on which machine, with which software."""

from __future__ import annotations

from typing import Literal

import msgspec

Figure = float | int | str | bool | None
RungState = Literal["passed", "failed", "not applicable"]

REQUIRED = ("devices", "allreduce-1", "result")  # rungs without which a record proves nothing
BETWEEN_GPUS = "allreduce-n"  # the rung that proves NCCL between GPUs


class ProvenGpu(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A GPU as its driver names it."""

    uuid: str
    name: str


class RungRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One rung of the ladder.

    Attributes:
        reason: why it failed or does not apply; empty where it passed.
        label: what its figures are worth less than a claim for: ``demonstration ...``, ``pretend: CPU``; else empty.
        figures: by name, with the unit in the name; only of what passed.
        proven: what the verdicts of its jobs prove, one sentence each.
        gpus, versions: what the rung on devices saw; else empty.
        inputs: key of all that went into it: jobs, programs, image or environment, GPUs.
        runs: directories of its jobs.
        attempt: how often it was begun anew, from 1 on.
        finished: Unix time, seconds.
    """

    rung: str
    state: RungState
    reason: str = ""
    label: str = ""
    figures: dict[str, Figure] = {}
    proven: tuple[str, ...] = ()
    gpus: tuple[ProvenGpu, ...] = ()
    versions: dict[str, str] = {}
    inputs: str = ""
    runs: tuple[str, ...] = ()
    attempt: int = 1
    finished: float = 0.0


class ProofRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What one climb of the ladder has proven.

    Attributes:
        date: of the last rung, ISO 8601, UTC.
        pretend: on processors; such a record proves nothing of GPUs.
        quick: with short measurements: its figures are demonstrations.
        site, runtime: of its jobs.
        image: the pinned image or environment.
        program: hash of the launcher, the recipes and the ladder.
        driver: NVIDIA's version. gpus: those of the node that the ladder used.
        versions: of torch, CUDA, NCCL, Horovod and what started the ranks, by name.
        digest: SHA-256 of the rest, hex: a record that was edited by hand does not fit it.
    """

    date: str
    pretend: bool
    quick: bool
    site: str
    runtime: str
    image: str
    program: str
    driver: str
    gpus: tuple[ProvenGpu, ...]
    versions: dict[str, str]
    rungs: tuple[RungRecord, ...]
    schema: Literal["1"] = "1"
    digest: str = ""

    def state_of(self, rung: str) -> RungState | None:
        """How the rung of that name ended; None where it was not tried."""
        return next((each.state for each in self.rungs if each.rung == rung), None)
