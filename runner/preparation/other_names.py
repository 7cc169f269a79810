"""Options as other programs call them, and what does it here: those of starters, and of each scheduler's programs."""

from __future__ import annotations

import importlib

from runner.model.backends import SCHEDULERS

# What it is here -> names of torchrun, which writes them with underscores, too, and of mpirun, mpiexec and horovodrun,
# which take long ones with one dash.
_STARTERS = {
    "--gpus N, in all: a rank is started for each GPU; --nodes N": "--nproc-per-node --local-world-size -n --n --np "
    "--npernode --ppn --perhost --ntasks-per-host",
    "--nodes N": "--nnodes",
    "ranks find each other by themselves (--wireup says how)": "--node-rank --master-addr --master-port --local-addr "
    "--standalone --rdzv-backend --rdzv-endpoint --rdzv-id --rdzv-conf",
    "a rank that fails ends the job: `rerun`": "--max-restarts",
    "a run keeps each rank's output: `logs --rank N`, `logs --all`": "--log-dir --redirects --tee "
    "--local-ranks-filter --tag-output --output-filename --prepend-rank",
    "-- PROGRAM": "--no-python",
    "-- torchrun ..., with all of its options": "--role --monitor-interval --start-method --run-path",
    "--nodes N; ranks fill them evenly, in order": "--map-by --rank-by --bynode --byslot",
    "each rank is bound to the processors near its GPU; --bind none leaves it": "--bind-to --report-bindings "
    "--use-hwthread-cpus",
    "--hosts NAME:N,... or --hostfile FILE": "-H --host --machinefile --hosts --hostfile",
    "--env NAME=VALUE": "--genv --env --envall --genvall",
    "a program starts in the working directory": "--wdir --wd",
    "--env OMPI_MCA_NAME=VALUE": "--mca --gmca",
    "nothing: no mpirun starts the ranks": "--allow-run-as-root",
}
_OF_STARTERS = {name: here for here, names in _STARTERS.items() for name in names.split()}


def instead_of(name: str) -> str:
    """What does here what an option of another program does, by its name as it is typed; empty where none is known."""
    dashed = name.replace("_", "-")
    modules = (SCHEDULERS[each].options for each in SCHEDULERS)
    tables = [importlib.import_module(module).OTHER_NAMES for module in modules if module]
    rows = [table[dashed] for table in (*tables, _OF_STARTERS) if dashed in table]
    return "; or ".join(dict.fromkeys(rows)) or _OF_STARTERS.get(f"-{dashed}", "")
