"""The launcher's command line."""

from __future__ import annotations

import argparse
import os
import shlex
from dataclasses import dataclass

from gpu_runner_inside.launcher import world


@dataclass(frozen=True)
class Options:
    """What the command line says. ``size`` and ``local_sizes``: the plan, where it is given."""

    run_dir: str | None
    size: int | None
    local_sizes: tuple[int, ...]
    wireup: str
    gpus: int | None
    fill: tuple[int, ...]
    calls: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...]
    bind: str
    first_gpu: int
    unset: tuple[str, ...]
    timeout_s: float
    leave_together: float | None
    umask: int | None
    caches: str
    argv: tuple[str, ...]


def options_of(words: list[str]) -> Options:
    """The command line. Exits with 2 and a usage line when it can't be taken."""
    parser = argparse.ArgumentParser(
        prog="launch.py",
        usage="launch.py [OPTIONS] -- PROGRAM [ARGUMENTS...]",
        description="Start PROGRAM as one rank of a job step.",
        allow_abbrev=False,
    )
    parser.add_argument("--run", metavar="DIR", help="run directory, for the records; none are kept without it")
    parser.add_argument("--world", type=int, metavar="N", help="planned number of tasks; another one is refused")
    parser.add_argument("--local-sizes", default="", metavar="A,B", help="planned tasks of each node: 8,8")
    parser.add_argument(
        "--wireup",
        choices=("rendezvous", "torchrun", "env", "own"),
        default="rendezvous",
        help="how ranks find each other: by our rendezvous, the same with torchrun's variables and not Horovod's, by "
        "what the starter set (MPI, PMIx), or one PROGRAM a node, which starts processes of its own",
    )
    parser.add_argument("--gpus", type=int, metavar="N", help="GPUs of a PROGRAM that starts processes of its own")
    parser.add_argument(
        "--fill",
        default="",
        metavar="A,N",
        help="N words of PROGRAM from A on have {index}, {address}, {port}, {hostfile}",
    )
    parser.add_argument(
        "--call",
        action="append",
        default=[],
        metavar="'N WORD...'",
        help="in each bash of PROGRAM the first N words are followed by the others",
    )
    parser.add_argument(
        "--bind",
        choices=("near-gpu", "gpu-share", "none"),
        default="near-gpu",
        help="processors of the task: those near its GPU, divided among the tasks there, or among the GPUs there",
    )
    parser.add_argument(
        "--first-gpu", type=int, default=0, metavar="N", help="which of the node's GPUs the first task has"
    )
    parser.add_argument("--unset", default="", metavar="A,B", help="variables that PROGRAM must not have")
    parser.add_argument(
        "--rendezvous-timeout",
        type=float,
        default=300.0,
        metavar="S",
        help="seconds to wait for the other ranks, where RUNNER_RDV_TIMEOUT_S does not say (default 300)",
    )
    parser.add_argument(
        "--leave-together",
        type=float,
        metavar="S",
        help="end well only when every rank of the node has ended, or after S seconds; 0: however long that takes",
    )
    parser.add_argument(
        "--umask", type=lambda text: int(text, 8), metavar="OCTAL", help="of PROGRAM; default: the launcher's own"
    )
    parser.add_argument(
        "--caches",
        choices=("shell", "home", "node"),
        default="shell",
        help="where caches that no variable places are: as in this shell; those of compilers in a directory of the "
        "job's own on each node (home); or all of them, as PROGRAM does not see the home directory (node)",
    )
    split = words.index("--") if "--" in words else len(words)
    given = parser.parse_args(words[:split])
    argv = words[split + 1 :]
    if not argv:
        parser.error("no program: what is to be run stands after --")
    try:
        local_sizes = world.sizes_of(given.local_sizes) if given.local_sizes else ()
    except world.WorldError as error:
        parser.error(f"--local-sizes: {error}")
    run_dir = None if given.run is None else os.path.abspath(given.run)
    return Options(
        run_dir,
        given.world,
        local_sizes,
        given.wireup,
        given.gpus,
        tuple(map(int, filter(None, given.fill.split(",")))),
        tuple(map(_call, given.call)),
        given.bind,
        given.first_gpu,
        tuple(filter(None, given.unset.split(","))),
        given.rendezvous_timeout,
        given.leave_together,
        given.umask,
        given.caches,
        tuple(argv),
    )


def _call(text: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    number, *words = shlex.split(text)
    return tuple(words[: int(number)]), tuple(words[int(number) :])
