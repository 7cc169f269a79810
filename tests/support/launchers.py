"""The launcher as a scheduler starts it: a process for each rank, with the variables of its task."""

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.rank_records import document_of

LAUNCH = Path(__file__).resolve().parents[2] / "recipes/lib/launch.py"


@dataclass(frozen=True)
class Task:
    """One launcher under way."""

    process: subprocess.Popen[str]
    run: Path
    rank: int

    def end(self) -> tuple[int, str]:
        """(status, its standard error)."""
        _out, err = self.process.communicate(timeout=60)
        return self.process.returncode, err

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().rstrip("\n")

    def record(self, kind: str) -> dict[str, Any]:
        return document_of(self.run, f"ranks/{self.rank}.{kind}")


def command(run: Path, *words: str) -> list[str]:
    return [sys.executable, str(LAUNCH), "--run", str(run), *words]


def python(text: str) -> list[str]:
    """The words of a launch for a program of Python."""
    return ["--", sys.executable, "-c", text]


def start(run: Path, words: Sequence[str], rank: int = 0, env: Mapping[str, str] | None = None) -> Task:
    """A launcher with these variables and a PATH."""
    variables = {"PATH": os.environ["PATH"], **(env or {})}
    pipe = subprocess.PIPE
    return Task(subprocess.Popen(command(run, *words), env=variables, stdout=pipe, stderr=pipe, text=True), run, rank)


def by_srun(rank: int, sizes: Sequence[int], job: object = 77) -> dict[str, str]:
    """What srun sets for a rank of a step with so many on each node, and the key of its rendezvous."""
    node = next(node for node in range(len(sizes)) if rank < sum(sizes[: node + 1]))
    facts = {
        "PROCID": rank, "NTASKS": sum(sizes), "LOCALID": rank - sum(sizes[:node]), "NODEID": node,
        "STEP_TASKS_PER_NODE": ",".join(map(str, sizes)), "JOB_ID": job, "STEP_ID": 0,
    }  # fmt: skip
    own = {"SLURMD_NODENAME": f"node{node}", "RUNNER_RDV_HOST": "127.0.0.1", "RUNNER_RDV_KEY": "of this job"}
    return {f"SLURM_{name}": str(value) for name, value in facts.items()} | own


def by_names(rank: int, size: int) -> dict[str, str]:
    """The usual names, of a rank on this machine's only node."""
    places = {
        "RANK": rank,
        "LOCAL_RANK": rank,
        "WORLD_SIZE": size,
        "LOCAL_WORLD_SIZE": size,
        "RUNNER_JOB_ID": os.getpid(),
    }
    own = {"RUNNER_RDV_HOST": "127.0.0.1", "RUNNER_RDV_KEY": "k"}
    return {name: str(value) for name, value in places.items()} | own
