"""The table of launchers: how a program is started, and which world comes of it, as docs/launchers.md shows it."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tests.support.commands import Runner
from tests.support.launcher_environment import MOUNTED, PROGRAMS

GPUS = 2  # of each node
# world: one, of a process for each GPU. refused: before the queue, with a line that works. told: it ran, several
# worlds formed, and the verdict says so. failed: the program ended with an error, which the verdict names.
Outcome = Literal["world", "refused", "told", "failed"]
EXIT = {"world": (0,), "refused": (2, 3), "told": (6,), "failed": (5,)}

# Where every row was seen so, and when.
SEEN = {"native": "2026-11-23", "charliecloud": "2026-11-23", "apptainer": "2026-11-23"}


@dataclass(frozen=True)
class Row:
    """A way to start a program.

    Attributes:
        program: what follows ``--``; GPUS, NODES and ALL stand for the job's numbers, HEAD for its first node.
        one, two: what comes of it on one node and on two.
        options: of ``submit``. torch: whether torch and Horovod are all it needs.
    """

    name: str
    program: str
    one: Outcome
    two: Outcome
    options: str = ""
    torch: bool = False

    def outcome(self, nodes: int) -> Outcome:
        return self.one if nodes == 1 else self.two

    def words(self, nodes: int, programs: Path | None) -> tuple[list[str], list[str]]:
        """The options and the program.

        Args:
            programs: a directory by whose path its programs are called, as it is not in the PATH of an image.
        """
        numbers = {"GPUS": str(GPUS), "NODES": str(nodes), "ALL": str(GPUS * nodes), "HEAD": "dgx01"}
        filled = (re.sub(r"\b(GPUS|NODES|ALL|HEAD)\b", lambda found: numbers[found[0]], text) for text in
                  (self.options, self.program))  # fmt: skip
        options, program = (text.split() for text in filled)
        known = {path.name: f"{MOUNTED}/bin/{path.name}" for path in (programs or Path("/nowhere")).glob("*")}
        known = {} if self.torch else known
        return options, [known.get(word, word) for word in program]


ROWS = (
    Row("python", "python3 train.py torch", "world", "world", torch=True),
    Row("torchrun", "torchrun train.py torch", "world", "world", torch=True),
    Row("torchrun, its counts right", "torchrun --nnodes NODES --nproc-per-node GPUS train.py torch", "world", "world",
        torch=True),
    Row("torchrun, its counts wrong", "torchrun --nproc-per-node 4 train.py torch", "refused", "refused", torch=True),
    Row("torchrun --standalone", "torchrun --standalone --nproc-per-node GPUS train.py torch", "world", "refused",
        torch=True),
    Row("torchrun, its own rendezvous", "torchrun --nnodes NODES --nproc-per-node GPUS --rdzv-backend c10d "
        "--rdzv-endpoint HEAD:29717 --rdzv-id 7 train.py torch", "world", "world", torch=True),
    Row("python -m torch.distributed.run", "python3 -m torch.distributed.run train.py torch", "world", "world",
        torch=True),
    Row("bash train.sh, torchrun in it", "bash train.sh", "world", "world", torch=True),
    Row("bash fixed.sh, two processes in it", "bash fixed.sh", "world", "world", torch=True),
    Row("accelerate launch", "accelerate launch train.py accelerate", "world", "world"),
    Row("accelerate launch --cpu", "accelerate launch --cpu train.py accelerate", "told", "told"),
    Row("deepspeed", "deepspeed train.py deepspeed", "world", "world"),
    Row("Lightning by its Slurm plugin", "python3 train.py lightning GPUS NODES", "world", "world"),
    Row("Lightning, job named bash", "python3 train.py lightning GPUS NODES", "world", "world", "--name bash"),
    Row("Lightning, job named interactive", "python3 train.py lightning GPUS NODES", "world", "world",
        "--name interactive"),
    Row("Lightning by torchrun", "torchrun train.py lightning GPUS NODES", "world", "world"),
    Row("Lightning, --wireup torchrun", "python3 train.py lightning GPUS NODES", "world", "world",
        "--wireup torchrun"),
    Row("HF Trainer", "python3 train.py transformers", "world", "world"),
    Row("HF Trainer by torchrun", "torchrun train.py transformers", "world", "world"),
    Row("jax.distributed", "python3 train.py jax", "world", "world"),
    Row("Horovod", "python3 train.py horovod", "world", "world", torch=True),
    Row("horovodrun", "horovodrun -np ALL python3 train.py horovod", "world", "refused", torch=True),
    Row("mpirun", "mpirun -np ALL python3 train.py mpi", "world", "refused"),
    Row("mpirun, Horovod", "mpirun -np ALL python3 train.py horovod", "world", "refused", torch=True),
)  # fmt: skip

_FORMED = re.compile(r"formed (\d+) as (\d+) of (\S+)")


def formed(run: Path) -> dict[str, list[tuple[int, int]]]:
    """The worlds that the processes of a run say they formed: (size, rank) of each process, by its world's name."""
    worlds: dict[str, list[tuple[int, int]]] = {}
    for log in sorted((run / "logs").glob("*.out")):
        for size, rank, name in _FORMED.findall(log.read_text()):
            worlds.setdefault(name, []).append((int(size), int(rank)))
    return worlds


def is_one(worlds: dict[str, list[tuple[int, int]]], size: int) -> bool:
    return [sorted(each) for each in worlds.values()] == [[(size, rank) for rank in range(size)]]


def check(runner: Runner, row: Row, nodes: int, directory: Path, *options: str, programs: Path | None = None) -> None:
    """Submit it, and compare what its processes say with the verdict, and both with the table."""
    for name, source in (("train.py", "main.py"), ("train.sh", "train.sh"), ("fixed.sh", "fixed.sh")):
        shutil.copy(PROGRAMS / source, directory / name)
    size, outcome = GPUS * nodes, row.outcome(nodes)
    own, program = row.words(nodes, programs)
    job = ("submit", "--gpus", str(size), "--nodes", str(nodes), "--time", "5:00", "--env", "OMP_NUM_THREADS=1")
    argv = runner.argv(*job, *options, *own, "--wait", "--", *program)
    done = subprocess.run(argv, capture_output=True, text=True, cwd=directory, env=runner.environment(), check=False)
    worlds = formed(runner.newest()) if runner.runs.is_dir() and any(runner.runs.iterdir()) else {}
    seen = f"{row.name}, {nodes} nodes: exit {done.returncode}, {worlds}\n{done.stdout}\n{done.stderr}"
    assert done.returncode in EXIT[outcome], seen
    assert is_one(worlds, size) == (outcome == "world"), seen
    if outcome == "refused":
        assert not worlds, seen
        assert "fix:" in done.stderr, seen
    if outcome == "told":
        assert "worlds" in done.stdout, seen
