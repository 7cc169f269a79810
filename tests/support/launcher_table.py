"""The table of launchers: how a program is started, and which world comes of it, as docs/launchers.md shows it."""

import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tests.support.commands import Runner
from tests.support.launcher_environment import PROGRAMS

GPUS = 2  # of each node
OF_ENVIRONMENT = ("python3", "torchrun", "accelerate", "deepspeed")
Outcome = Literal["world", "refused", "noted", "not-proven"]
EXIT = {"world": 0, "refused": 3, "noted": 0, "not-proven": 6}

RUNTIMES = ("native", "charliecloud", "apptainer")


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

    def arguments(self, nodes: int, programs: str) -> tuple[list[str], list[str]]:
        """The options and the program.

        Args:
            programs: the environment's directory of programs, which is not in an image's PATH; else empty.
        """
        numbers = {"GPUS": str(GPUS), "NODES": str(nodes), "ALL": str(GPUS * nodes), "HEAD": "dgx01"}
        filled = (re.sub(r"\b(GPUS|NODES|ALL|HEAD)\b", lambda found: numbers[found[0]], text) for text in
                  (self.options, self.program))  # fmt: skip
        options, program = (text.split() for text in filled)
        own = programs and not self.torch
        for place, word in enumerate(program):
            if own and word in (OF_ENVIRONMENT if place == 0 else ("python3",)):
                program[place] = f"{programs}/{word}"
        return options, program


# What the box alone needs: one is root there, its only network is the loopback, and mpirun is on its nodes only.
BY_MPI = (
    "--env OMPI_ALLOW_RUN_AS_ROOT=1 --env OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 --env OMPI_MCA_if_base_retain_loopback=1 "
    "--env OMPI_MCA_oob_tcp_if_include=lo --env OMPI_MCA_btl_tcp_if_include=lo --force program-not-startable"
)
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
    Row("python, which calls torchrun itself", "python3 hidden.py", "noted", "noted", torch=True),
    Row("python, which sets RANK and WORLD_SIZE itself", "python3 own_place.py torch", "noted", "noted", torch=True),
    Row("python, which sets them itself, with --world", "python3 own_place.py torch", "not-proven", "not-proven",
        "--world ALL", torch=True),
    Row("accelerate launch", "accelerate launch train.py accelerate", "world", "world"),
    Row("accelerate launch --cpu", "accelerate launch --cpu train.py accelerate", "refused", "refused"),
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
    Row("horovodrun --gloo",
        "horovodrun --disable-cache --gloo -np ALL python3 train.py horovod", "world", "refused", BY_MPI, torch=True),
    Row("mpirun", "mpirun -np ALL python3 train.py mpi", "world", "refused", BY_MPI),
    Row("mpirun, Horovod", "mpirun -np ALL python3 train.py horovod", "world", "refused", BY_MPI, torch=True),
)  # fmt: skip


def page_lines() -> Iterator[str]:
    """Of docs/launchers.md: the rows by what comes of them."""
    for one, two in dict.fromkeys((row.one, row.two) for row in ROWS):
        yield f"\n**{one}**{f' on one node, **{two}** on two' * (one != two)}\n\n"
        for row in (row for row in ROWS if (row.one, row.two) == (one, two)):
            words = " ".join(filter(None, (row.options * (row.options != BY_MPI), "--", row.program)))
            yield f"- {row.name}: `{words}`\n"


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


def check(runner: Runner, row: Row, nodes: int, directory: Path, *options: str, programs: str = "") -> None:
    """Submit it, and compare what its processes say with the verdict, and both with the table."""
    for name in ("main.py", "train.sh", "fixed.sh", "hidden.py", "own_place.py"):
        shutil.copy(PROGRAMS / name, directory / name.replace("main", "train"))
    size, outcome = GPUS * nodes, row.outcome(nodes)
    own, program = row.arguments(nodes, programs)
    job = ("submit", "--gpus", str(size), "--nodes", str(nodes), "--time", "5:00", "--env", "OMP_NUM_THREADS=1")
    argv = runner.argv(*job, *options, *own, "--wait", "--", *program)
    done = subprocess.run(argv, capture_output=True, text=True, cwd=directory, env=runner.environment(), check=False)
    worlds = formed(runner.newest()) if runner.runs.is_dir() and any(runner.runs.iterdir()) else {}
    seen = f"{row.name}, {nodes} nodes: exit {done.returncode}, {worlds}\n{done.stdout}\n{done.stderr}"
    assert done.returncode == EXIT[outcome], seen
    assert is_one(worlds, size) == (outcome == "world"), seen
    if outcome == "refused":
        assert not worlds, seen
        assert "fix (" in done.stderr, seen
    if outcome == "world":
        assert f"formed 1 world of {size} devices" in done.stdout, seen
    if outcome in ("noted", "not-proven"):
        assert f"formed {size} worlds of 1" in done.stdout or "may have run in a world of one" in done.stdout, seen
