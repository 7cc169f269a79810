"""The Slurm batch script: a function of the plan and its step alone (no time, no run id, no random value).

It starts in the run directory, which is ``$SLURM_SUBMIT_DIR``, so what a dry run prints, what lies in the run
directory and what Slurm gets are the same bytes.
"""

from __future__ import annotations

from collections.abc import Iterator

from runner.errors import UsageError
from runner.model.plan import Plan
from runner.model.step import RUN_DIRECTORY, StepSpec, Word, text, texts
from runner.render.sbatch import directive
from runner.render.shell import folded, statement

NODE_NOT_READY = 71  # the container could not be made on every node
NO_RUN_DIRECTORY = 72  # the run directory is not to be seen on the first node
WRONG_NODES = 73  # the allocation's nodes are not the planned ones

# Left over from a login shell, these change what a rank runs (Slurm may still load the user's login environment
# under --export=NONE).
_LEAKS = (
    "PYTHONPATH PYTHONHOME PYTHONSTARTUP VIRTUAL_ENV LD_PRELOAD LD_LIBRARY_PATH "
    'BASH_ENV "${!CONDA_@}" "${!OMPI_MCA_@}" "${!PMIX_MCA_@}" \\\n'
    '  "${!HOROVOD_@}" {http,https,ftp,all,no}_proxy {HTTP,HTTPS,FTP,ALL,NO}_PROXY'
)

# Options that the plan itself decides: a site's directives may not undo it.
_PLANNED = frozenset(
    (
        *("job-name", "partition", "account", "nodes", "ntasks", "ntasks-per-node", "cpus-per-task", "exclusive"),
        *("gpus", "gpus-per-node", "gpus-per-task", "gpu-bind", "gres", "mem", "mem-per-cpu", "mem-per-gpu"),
        *("time", "signal", "no-requeue", "requeue", "export", "output", "error", "chdir", "array", "wrap"),
    )
)

_HEAD = f"""\
set -uo pipefail
umask 077
unset SLURM_EXPORT_ENV                         # --export=NONE would reach srun, too
unset -v {_LEAKS}
export USER="${{USER:-$(id -un)}}"
ulimit -l unlimited 2>/dev/null || echo "memlock is $(ulimit -l) kB: RDMA registration may fail" >&2

{RUN_DIRECTORY}=$SLURM_SUBMIT_DIR
cd -- "${RUN_DIRECTORY}" || exit {NO_RUN_DIRECTORY}
"""

_TRAPS = """\
runner_step=
trap 'kill -USR1 "$runner_step" 2>/dev/null' USR1   # near the time limit: checkpoint and leave
trap 'kill -TERM "$runner_step" 2>/dev/null' TERM
"""

_TAIL = """\
runner_step=$!
while kill -0 "$runner_step" 2>/dev/null; do wait "$runner_step"; done
wait "$runner_step"; runner_exit=$?
printf '{"job":"%s","exit":%d,"end_s":%d}\\n' "$SLURM_JOB_ID" "$runner_exit" "$(date +%s)" \\
  >exit.json.part && mv -f exit.json.part exit.json
exit "$runner_exit"
"""


def render(plan: Plan, step: StepSpec) -> str:
    """The whole batch script.

    Raises:
        UsageError: a value that bash or sbatch could not take as it is; says which.
    """
    parts = [
        "#!/bin/bash",
        *_directives(plan),
        _HEAD,
        _world(plan),
        *(statement(entry) for entry in step.prelude),
        "",
    ]
    if step.once_a_node:
        first = texts("srun", f"--mpi={plan.mpi}", f"--nodes={plan.nodes}", f"--ntasks={plan.nodes}")
        first = (*first, *texts("--ntasks-per-node=1", "--kill-on-bad-exit=1"), *step.once_a_node)
        parts += [f"# Once a node, not once a rank.\n{folded(first)} || exit {NODE_NOT_READY}\n"]
    if _uneven(plan):
        parts.append(_hostfile(plan))
    parts += [_TRAPS, f"{folded(tuple(_step(plan, step)))} &", _TAIL]
    return "\n".join(parts)


def _directives(plan: Plan) -> Iterator[str]:
    gpus = f"{plan.gpu_type}:{plan.gpus_per_node}" if plan.gpu_type else str(plan.gpus_per_node)
    yield directive("job-name", plan.job_name)
    if plan.partition is not None:
        yield directive("partition", plan.partition)
    if plan.account is not None:
        yield directive("account", plan.account)
    yield directive("nodes", str(plan.nodes))
    yield directive("ntasks-per-node", str(max(plan.tasks_per_node)))
    yield directive("gpus-per-node", gpus)
    yield directive("cpus-per-task", str(plan.cpus_per_task))
    yield directive("mem", f"{plan.memory_mb}M" if plan.memory_mb else "0")
    if plan.exclusive:
        yield directive("exclusive")
    for option, value in plan.directives:
        if option in _PLANNED:
            raise UsageError(
                f"--{option} is decided by the plan",
                where=f"site {plan.site}: slurm.directives.{option}",
                mend="leave it out; its value follows from the request and the node's shape",
            )
        yield directive(option, value)
    yield directive("time", _clock(plan.walltime_s))
    if plan.walltime_s >= 5:
        yield directive("signal", f"B:USR1@{min(120, plan.walltime_s // 5)}")
    yield directive("no-requeue")
    yield directive("export", "NONE")
    yield directive("output", "logs/batch.out")
    yield directive("error", "logs/batch.err")


def _world(plan: Plan) -> str:
    """Head node and port, decided here: there is no scontrol in a container."""
    return "\n".join(
        (
            'mapfile -t runner_hosts < <(scontrol show hostnames "$SLURM_JOB_NODELIST")',
            f'[ "${{#runner_hosts[@]}}" -eq {plan.nodes} ] || {{',
            f'  echo "planned {plan.nodes} nodes, allocated ${{#runner_hosts[@]}}" >&2; exit {WRONG_NODES}; }}',
            'export RUNNER_RDV_HOST="${runner_hosts[0]}"',
            "export RUNNER_RDV_PORT=$(( 12000 + SLURM_JOB_ID % 16000 ))   # below ip_local_port_range",
        )
    )


def _hostfile(plan: Plan) -> str:
    """The node of every rank of an uneven split: without it Slurm fills nodes as it likes (14 and 2, measured)."""
    counts = " ".join(str(count) for count in plan.tasks_per_node)
    return f"""\
runner_counts=({counts})
for runner_i in "${{!runner_hosts[@]}}"; do
  for (( runner_n = 0; runner_n < runner_counts[runner_i]; runner_n++ )); do
    printf '%s\\n' "${{runner_hosts[runner_i]}}"
  done
done >hosts
export SLURM_HOSTFILE="${RUN_DIRECTORY}/hosts"
unset SLURM_NTASKS_PER_NODE   # srun would warn that it cannot honour both
"""


def _step(plan: Plan, step: StepSpec) -> Iterator[Word]:
    yield from texts("srun", f"--mpi={plan.mpi}", f"--nodes={plan.nodes}", f"--ntasks={plan.tasks}")
    if _uneven(plan):
        yield text("--distribution=arbitrary")
    else:
        yield text(f"--ntasks-per-node={plan.tasks_per_node[0]}")
    yield text(f"--cpus-per-task={plan.cpus_per_task}")
    if plan.exclusive:
        yield text("--cpu-bind=none")  # the launcher binds, from the node's own sysfs
    yield from texts("--kill-on-bad-exit=1", "--wait=60")
    yield from texts("--output=logs/rank-%t.out", "--error=logs/rank-%t.err")
    yield from step.launcher
    yield from step.command


def _uneven(plan: Plan) -> bool:
    return len(set(plan.tasks_per_node)) > 1


def _clock(seconds: int) -> str:
    """Slurm's ``[days-]hours:minutes:seconds``."""
    days, rest = divmod(seconds, 86400)
    hours, rest = divmod(rest, 3600)
    clock = f"{hours:02d}:{rest // 60:02d}:{rest % 60:02d}"
    return f"{days}-{clock}" if days else clock
