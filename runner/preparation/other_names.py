"""Options as other programs call them, and what does it here: those of starters, and of each scheduler's programs."""

from __future__ import annotations

import importlib

from runner.model.backends import SCHEDULERS

_MEET = "ranks find each other by themselves (--wireup says how)"
_RANKS = "--gpus N, in all: a rank is started for each GPU; --nodes N"
_BOUND = "each rank is bound to the processors near its GPU; --bind none leaves it"
_HOSTS = "--hosts NAME:N,... or --hostfile FILE"
_OUTPUT = "a run keeps each rank's output: `logs --rank N`, `logs --all`"
# Of torchrun; it writes them with underscores, too.
_TORCHRUN = {
    **dict.fromkeys(("--nproc-per-node", "--local-world-size"), _RANKS),
    "--nnodes": "--nodes N",
    **dict.fromkeys(("--node-rank", "--master-addr", "--master-port", "--local-addr", "--standalone"), _MEET),
    **dict.fromkeys(("--rdzv-backend", "--rdzv-endpoint", "--rdzv-id", "--rdzv-conf"), _MEET),
    "--max-restarts": "a rank that fails ends the job: `rerun`",
    **dict.fromkeys(("--log-dir", "--redirects", "--tee", "--local-ranks-filter"), _OUTPUT),
    "--module": "-- python -m MODULE",
    "--no-python": "-- PROGRAM",
    **dict.fromkeys(("--role", "--monitor-interval", "--start-method"), "-- torchrun ..., with all of its options"),
}
# Of mpirun, mpiexec and horovodrun; long ones with one dash, too.
_MPIRUN = {
    **dict.fromkeys(("-n", "--n", "--np", "--npernode", "--ppn", "--perhost", "--ntasks-per-host"), _RANKS),
    **dict.fromkeys(("--map-by", "--rank-by", "--bynode", "--byslot"), "--nodes N; ranks fill them evenly, in order"),
    **dict.fromkeys(("--bind-to", "--report-bindings", "--use-hwthread-cpus"), _BOUND),
    **dict.fromkeys(("-H", "--host", "--machinefile", "--hosts", "--hostfile"), _HOSTS),
    **dict.fromkeys(("--genv", "--env", "--envall", "--genvall"), "--env NAME=VALUE"),
    **dict.fromkeys(("--tag-output", "--output-filename", "--prepend-rank"), _OUTPUT),
    **dict.fromkeys(("--wdir", "--wd"), "a program starts in the working directory"),
    **dict.fromkeys(("--mca", "--gmca"), "--env OMPI_MCA_NAME=VALUE"),
    "--allow-run-as-root": "nothing: no mpirun starts the ranks",
}


def instead_of(name: str) -> str:
    """What does here what an option of another program does, by its name as it is typed; empty where none is known."""
    dashed = name.replace("_", "-")
    modules = (SCHEDULERS[each].options for each in SCHEDULERS)
    tables = [importlib.import_module(module).OTHER_NAMES for module in modules if module]
    rows = [table[dashed] for table in (*tables, _TORCHRUN, _MPIRUN) if dashed in table]
    return "; or ".join(dict.fromkeys(rows)) or _MPIRUN.get(f"-{dashed}", "")
