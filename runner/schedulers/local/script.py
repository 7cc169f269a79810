"""The batch script of a job on this very machine: plain bash, a function of the plan and its step alone.

It does for the ranks what ``srun --kill-on-bad-exit=1 --wait=60`` and a time limit do elsewhere. Started by
``runner.schedulers.local.client`` in a session of its own; ``bash job.sh`` by hand does the same in the foreground.
"""

from __future__ import annotations

from runner.errors import UsageError
from runner.model.plan import Plan
from runner.model.step import StepSpec
from runner.render.shell import folded, statement
from runner.schedulers import supervised_script

CONTAINER_NOT_READY = 71
NO_RUN_DIRECTORY = 72
TIMED_OUT = 124  # as timeout(1)

WAIT_S = 60  # after the first rank has ended
GRACE_S = 30  # between SIGTERM and SIGKILL

# Whoever started the shell that submits may have been a task itself: its place in that world is not ours.
_STARTERS = ("SLURM", "PMI", "PALS_", "OMPI_COMM_WORLD_", "HOROVOD_GLOO_RENDEZVOUS_", "RUNNER_")

_TRAPS = """\
trap 'runner_why=${runner_why:-CANCELLED}' TERM INT
trap '' HUP   # the terminal may go
"""

_MEETING = """\
export RUNNER_RDV_HOST=127.0.0.1
export RUNNER_RDV_PORT=$(( 12000 + $$ % 16000 ))   # below ip_local_port_range
"""

_WATCH = f"""\
runner_tell() {{
  for runner_i in "${{!runner_ranks[@]}}"; do kill "-$1" -- "$2${{runner_ranks[runner_i]}}" 2>/dev/null; done
}}
runner_exit=0 runner_first='' runner_told='' runner_warned=''
while [ "${{#runner_ranks[@]}}" -gt 0 ]; do
  for runner_i in "${{!runner_ranks[@]}}"; do
    runner_rank=${{runner_ranks[runner_i]}}
    kill -0 "$runner_rank" 2>/dev/null && continue
    wait "$runner_rank"; runner_code=$?
    kill -KILL -- "-$runner_rank" 2>/dev/null   # what it has left behind
    unset "runner_ranks[runner_i]"
    runner_first=${{runner_first:-$SECONDS}}
    [ "$runner_code" -eq 0 ] && continue
    [ "$runner_exit" -ne 0 ] || runner_exit=$runner_code
    runner_why=${{runner_why:-FAILED}}
  done
  [ "${{#runner_ranks[@]}}" -gt 0 ] || break
  if [ "$SECONDS" -ge "$runner_limit" ]; then runner_why=${{runner_why:-TIMEOUT}}; fi
  if [ -n "$runner_first" ] && [ "$(( SECONDS - runner_first ))" -ge {WAIT_S} ]; then
    runner_why=${{runner_why:-FAILED}}
  fi
  if [ -n "$runner_told" ]; then
    if [ "$(( SECONDS - runner_told ))" -ge {GRACE_S} ]; then runner_tell KILL -; fi
  elif [ -n "$runner_why" ]; then
    runner_told=$SECONDS
    runner_tell TERM ''
  elif [ -z "$runner_warned" ] && [ "$SECONDS" -ge "$runner_near" ]; then
    runner_warned=yes
    runner_tell USR1 ''   # near the time limit: checkpoint and leave
  fi
  sleep 0.2
done
case $runner_why in
TIMEOUT) exit {TIMED_OUT} ;;
CANCELLED) exit 143 ;;
NODE_FAIL | FAILED) exit "$(( runner_exit ? runner_exit : 1 ))" ;;
esac
exit 0
"""


def render(plan: Plan, step: StepSpec) -> str:
    """The whole script.

    Raises:
        UsageError: what only a scheduler has, or a value that bash could not take as it is; says which.
    """
    if plan.queue is not None:
        raise UsageError("this machine has no queues", where=f"--queue {plan.queue}", fix="leave it out")
    parts = [
        "#!/bin/bash",
        "set -uo pipefail",
        "umask 077",
        supervised_script.without(_STARTERS) if step.inherits else supervised_script.only(),
        'export USER="${USER:-$(id -un)}"',
        supervised_script.into_run_directory(NO_RUN_DIRECTORY),
        supervised_script.OWN_JOB_ID,
        supervised_script.marker(step.at_end),
        _TRAPS,
        _MEETING,
        *(statement(entry) for entry in step.prelude),
        "",
    ]
    if step.once_a_node:
        parts.append(f"{folded(step.once_a_node)} || exit {CONTAINER_NOT_READY}\n")
    parts += [_ranks(plan, step), _limit(plan.walltime_s), _WATCH]
    return "\n".join(parts)


def _ranks(plan: Plan, step: StepSpec) -> str:
    return f"""\
set -m   # each rank leads a process group of its own, so that nothing of it is left
runner_ranks=()
for (( runner_i = 0; runner_i < {plan.tasks}; runner_i++ )); do
  runner_rank=$runner_i
  (
    export RANK="$runner_rank" LOCAL_RANK="$runner_i" WORLD_SIZE={plan.tasks} LOCAL_WORLD_SIZE={plan.tasks}
    exec {folded(step.command)}
  ) >"logs/rank-$runner_rank.out" 2>"logs/rank-$runner_rank.err" </dev/null &
  runner_ranks[runner_i]=$!
done
"""


def _limit(walltime_s: int) -> str:
    near_s = walltime_s - min(120, walltime_s // 5)
    return f"runner_limit={walltime_s} runner_near={near_s}   # seconds\n"
