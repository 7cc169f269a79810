"""A Horovod in one line: how it can reduce, and for which GPUs."""

from __future__ import annotations

from runner.checks.image_fit import horovod_architectures
from runner.core.text import printable
from runner.model.image import Horovod


def summary(horovod: Horovod) -> str:
    """``0.28.1; operations: NCCL 2.25.1, MPI, Gloo; kernels: sm_80, sm_90, compute_90``.

    >>> summary(Horovod("0.28.1", operations=("Gloo",)))
    '0.28.1; operations: Gloo'
    """
    named = [f"NCCL {horovod.nccl}".strip() if each == "NCCL" else each for each in horovod.operations]
    parts = [horovod.version or "of unknown version", f"operations: {', '.join(named) or 'unknown'}"]
    if horovod.has_nccl:
        parts.append(f"kernels: {', '.join(horovod_architectures(horovod)) or 'unknown'}")
    return printable("; ".join(parts))
