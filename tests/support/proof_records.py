"""Proof records of a GPU machine that does not exist, as `prove` would leave them."""

from typing import Any

import msgspec

from runner.model.verdict import BETWEEN_GPUS, REQUIRED, ProofRecord, ProvenGpu, RungRecord
from runner.sites.proofs import digest_of

UUIDS = ("GPU-11111111-2222-3333-4444-555555555555", "GPU-66666666-7777-8888-9999-000000000000")


def record(**changes: Any) -> ProofRecord:
    """A record that proves everything on two GPUs, with these changes, and the digest that belongs to it."""
    made = ProofRecord(
        date="2026-11-22T12:00:00Z",
        pretend=False,
        quick=False,
        site="local",
        runtime="native",
        image="/envs/prove",
        program="0" * 24,
        driver="570.86.15",
        gpus=tuple(ProvenGpu(uuid, "NVIDIA H100") for uuid in UUIDS),
        versions={"torch": "2.13.0", "CUDA": "13.0"},
        rungs=tuple(RungRecord(rung, "passed") for rung in (*REQUIRED, BETWEEN_GPUS)),
    )
    changed = msgspec.structs.replace(made, **changes)
    return msgspec.structs.replace(changed, digest=digest_of(changed))
