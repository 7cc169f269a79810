"""The Slurm allocation of this shell."""

from __future__ import annotations

import os
import re
from pathlib import Path

from runner.backends.schedulers import client_call
from runner.core import process
from runner.core.errors import NotAcceptedError, RefusedError, UnknownStateError
from runner.model.job import AllocatedNode, Allocation

_NODES = re.compile(r"^\s+Nodes=(\S+) CPU_IDs=(\S+) Mem=\d+ GRES=(\S*)", re.MULTILINE)
_GPUS = re.compile(r"gpu(?::[^:,(]+)?:(\d+)\(")


def allocation(clients: Path | None) -> Allocation | None:
    """The allocation whose number is in SLURM_JOB_ID; None where there is no such variable.

    Raises:
        RefusedError: it has ended, or has not begun.
        UnknownStateError: Slurm does not answer.
    """
    job_id = os.environ.get("SLURM_JOB_ID", "")
    if not job_id.isdigit():
        return None
    shown = _ask(clients, "scontrol", "--details", "show", "job", job_id)
    state = re.search(r"^ +JobState=(\S+)", shown.out, re.MULTILINE)
    if shown.code != 0 and "Invalid job id" not in shown.err:
        raise UnknownStateError(f"Slurm does not answer: {shown.last_lines(2)}", where=f"scontrol show job {job_id}")
    if state is None or state[1] != "RUNNING":
        raise RefusedError(
            f"allocation {job_id} is not running: {state[1] if state else 'Slurm does not know it'}",
            where="SLURM_JOB_ID",
            fix="get one with salloc, or `unset SLURM_JOB_ID` and use `submit`",
        )
    nodes = [
        AllocatedNode(name, cpus=_count(cpu_ids), gpus=sum(int(count) for count in _GPUS.findall(gres)))
        for names, cpu_ids, gres in _NODES.findall(shown.out)
        for name in _ask(clients, "scontrol", "show", "hostnames", names).out.split()
    ]
    return Allocation(
        job_id,
        tuple(sorted(nodes, key=lambda node: node.name)),
        in_step=os.environ.get("SLURM_STEP_ID", "").isdigit(),
    )


def _ask(clients: Path | None, program: str, *options: str) -> process.Completed:
    try:
        return client_call.call("Slurm", clients, program, *options)
    except NotAcceptedError as error:
        raise RefusedError(
            f"SLURM_JOB_ID is set, but {program} was not found",
            where="PATH",
            fix="run this on a Slurm host",
        ) from error


def _count(ids: str) -> int:
    """How many numbers Slurm's ``0-63,128-191`` names."""
    ranges = [part.partition("-") for part in ids.split(",")]
    return sum(int(last or first) - int(first) + 1 for first, _, last in ranges)
