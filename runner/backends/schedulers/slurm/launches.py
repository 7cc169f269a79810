"""The batch script of a study's one allocation in Slurm: the nodes in a fixed order, then the launches one by one."""

from __future__ import annotations

from collections.abc import Iterable

from runner.backends.schedulers import launches as launches_script
from runner.backends.schedulers import supervised_script
from runner.backends.schedulers.slurm.script import directives
from runner.model.exit_codes import NO_RUN_DIRECTORY, WRONG_NODES
from runner.model.job import ListedLaunch
from runner.model.plan import Plan
from runner.model.step import JOB_ID, StepSpec

FREE_S = 300  # until steps that are still known after their launch's end are ended; twice that ends the study's job

# `nodes`: a line for each, NODE and leaf switch ("-": unknown; of topology/tree alone), those of the fullest switch
# first, so that a small launch crosses no switch that it need not. What an earlier allocation of the study had in
# another order stays in that order.
_ORDER = """\
declare -A runner_leaf=() runner_count=()
while read -r runner_switch runner_names; do
  while read -r runner_i; do runner_leaf[$runner_i]=$runner_switch; done < <(scontrol show hostnames "$runner_names")
done < <(timeout 60 scontrol show topology 2>/dev/null |
  sed -nE 's/^SwitchName=(\\S+) Level=0 .*Nodes=(\\S+).*/\\1 \\2/p')
for runner_i in "${runner_hosts[@]}"; do
  runner_switch=${runner_leaf[$runner_i]:--}
  runner_count[$runner_switch]=$(( ${runner_count[$runner_switch]:-0} + 1 ))
done
runner_n=0
for runner_i in "${runner_hosts[@]}"; do
  runner_switch=${runner_leaf[$runner_i]:--}
  printf '%d\\t%s\\t%d\\t%s\\n' "${runner_count[$runner_switch]}" "$runner_switch" "$(( runner_n++ ))" "$runner_i"
done | LC_ALL=C sort -t $'\\t' -k1,1nr -k2,2 -k3,3n | awk -F '\\t' '{ print $4 "\\t" $2 }' >nodes
if [ -r ../nodes ] && [ "$(LC_ALL=C sort ../nodes)" = "$(LC_ALL=C sort nodes)" ]; then
  cp ../nodes nodes
elif [ ! -e ../nodes ]; then
  cp nodes ../nodes
fi
mapfile -t runner_nodes < <(cut -f 1 nodes)
"""

# A step whose srun has ended may still hold its GPUs and its container's files. Slurm lists it until it does not.
_FREE = f"""\
runner_free() {{
  local runner_until=$(( SECONDS + {FREE_S} )) runner_steps
  while :; do
    if runner_steps=$(timeout 20 squeue --noheader --steps --jobs="$SLURM_JOB_ID" --format=%i 2>/dev/null); then
      runner_steps=$(grep -E '\\.[0-9]+$' <<<"$runner_steps") || return 0
    else
      runner_steps=
    fi
    if [ "$SECONDS" -ge "$(( runner_until + {FREE_S} ))" ]; then
      echo "after its launch's end a step still holds its nodes: $runner_steps" >&2
      runner_stop=BUSY
      return 0
    fi
    # shellcheck disable=SC2086
    [ "$SECONDS" -lt "$runner_until" ] || timeout 20 scancel $runner_steps
    sleep 0.5
  done
}}
"""


def render(plan: Plan, step: StepSpec, launches: Iterable[ListedLaunch]) -> str:
    """The whole batch script.

    Args:
        plan: of a job as large as the largest launch, whose time limit is that of all of them together.

    Raises:
        UsageError: a value that bash or sbatch could not take as it is; says which.
    """
    parts = [
        "#!/bin/bash",
        *directives(plan, step),
        "# The launches of a study, one after another, each with all that this job has of its nodes.",
        "set -uo pipefail",
        "umask 077",
        "unset SLURM_EXPORT_ENV",
        'unset -v "${!SQUEUE_@}" "${!SCONTROL_@}"',
        f"{JOB_ID}=$SLURM_JOB_ID",
        f'cd -- "$SLURM_SUBMIT_DIR" || exit {NO_RUN_DIRECTORY}',
        supervised_script.marker(),
        'mapfile -t runner_hosts < <(scontrol show hostnames "$SLURM_JOB_NODELIST")',
        f'[ "${{#runner_hosts[@]}}" -eq {plan.nodes} ] || {{',
        f'  echo "planned {plan.nodes} nodes, allocated ${{#runner_hosts[@]}}" >&2; exit {WRONG_NODES}; }}',
        _ORDER,
        "runner_cpus=$(tr , '\\n' <<<\"$SLURM_JOB_CPUS_PER_NODE\" | sort -n | head -n 1)",
        "runner_cpus=${runner_cpus%%[!0-9]*}",
        f"runner_limit={plan.walltime_s}   # seconds",
        launches_script.BEGIN,
        _FREE,
        *map(launches_script.on_nodes, launches),
        launches_script.END,
    ]
    return "\n".join(parts)
