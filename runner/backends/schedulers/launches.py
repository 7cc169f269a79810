"""The script of a study's one allocation: it runs the launches' own scripts, one after another and alone, but for
launches on one GPU of different nodes, which may run side by side.

It starts in the allocation's directory. What it does with a launch follows from the launch's run directory alone:

    begun           it was started; a launch without this file has used nothing
    cancelled.json  `cancel` asks for its end: a launch that has not begun is passed over
    exit.json       it has ended, and how; left here where its own script was killed
    over            it ended by itself, or because it was cancelled: nothing was ending the whole allocation

``launches`` beside the script lists what was run, and when; ``stopped`` says why the rest was not.
"""

from __future__ import annotations

from collections.abc import Iterable

from runner.backends.schedulers import supervised_script
from runner.model.exit_codes import CANCELLED, NO_RUN_DIRECTORY
from runner.model.job import ListedLaunch
from runner.model.plan import Plan
from runner.model.step import JOB_ID, StepSpec, texts
from runner.render.shell import quoted_arguments

# The launch's own time limit is kept by its own script.
BEGIN = """\
runner_ending='' runner_stop='' runner_running=0 runner_dirs=() runner_pids=() runner_begans=() runner_codes=()
trap 'runner_ending=yes runner_stop=${runner_stop:-CANCELLED}; runner_term' TERM INT
trap : HUP USR1   # not ignored: that would be inherited
: >launches

runner_term() {   # every launch that runs
  local runner_i
  for (( runner_i = 0; runner_i < runner_running; runner_i++ )); do
    [ -z "${runner_pids[runner_i]}" ] || kill -TERM "${runner_pids[runner_i]}" 2>/dev/null
  done
}

runner_end() {   # run directory, exit status, why: for a script that could not write it
  [ -e "$1/exit.json" ] || {
    printf '{"job":"%s","exit":%d,"end_s":%d,"why":"%s"}\\n' "$RUNNER_JOB" "$2" "$(date +%s)" "$3" \\
      >"$1/exit.json.part" && mv -f "$1/exit.json.part" "$1/exit.json"
  }
}

# Arguments: run directory; seconds that must be left; arguments of its script.
runner_begin() {
  [ -z "$runner_stop" ] || return 0
  if [ -e "$1/cancelled.json" ]; then runner_end "$1" CANCELLED_CODE CANCELLED; return 0; fi
  if [ "$(( SECONDS + $2 ))" -gt "$runner_limit" ]; then runner_stop=TIME; return 0; fi
  : >"$1/begun" || { runner_stop=DISK; return 0; }
  runner_dirs[runner_running]=$1
  runner_begans[runner_running]=$(date +%s.%N)
  bash "$1/job.sh" "${@:3}" >>"$1/logs/batch.out" 2>>"$1/logs/batch.err" </dev/null &
  runner_pids[runner_running]=$!
  runner_running=$(( runner_running + 1 ))
  [ -z "$runner_ending" ] || kill -TERM "$!" 2>/dev/null   # its turn to be ended was before it was counted
}

# The same, and then it and those that were begun before it run to their ends.
runner_launch() {
  local runner_i runner_left=yes runner_asked=()
  runner_begin "$@"
  while [ -n "$runner_left" ]; do
    runner_left=''
    for (( runner_i = 0; runner_i < runner_running; runner_i++ )); do
      [ -n "${runner_pids[runner_i]}" ] || continue
      if ! kill -0 "${runner_pids[runner_i]}" 2>/dev/null; then
        wait "${runner_pids[runner_i]}"; runner_codes[runner_i]=$?
        [ -n "$runner_ending" ] || : >"${runner_dirs[runner_i]}/over"
        runner_pids[runner_i]=''
        continue
      fi
      runner_left=yes
      if [ -z "${runner_asked[runner_i]:-}" ] && [ -e "${runner_dirs[runner_i]}/cancelled.json" ]; then
        runner_asked[runner_i]=yes
        kill -TERM "${runner_pids[runner_i]}" 2>/dev/null
      fi
    done
    [ -z "$runner_left" ] || sleep 0.2
  done
  [ "$runner_running" -eq 0 ] || runner_free
  for (( runner_i = 0; runner_i < runner_running; runner_i++ )); do
    runner_end "${runner_dirs[runner_i]}" "${runner_codes[runner_i]}" KILLED
    printf '%s\\t%s\\t%s\\t%s\\n' "${runner_begans[runner_i]}" "$(date +%s.%N)" "${runner_codes[runner_i]}" \\
      "${runner_dirs[runner_i]}" >>launches
  done
  runner_running=0
}
""".replace("RUNNER_JOB", JOB_ID).replace("CANCELLED_CODE", str(CANCELLED))

END = f"""\
[ -z "$runner_stop" ] || printf '%s\\n' "$runner_stop" >stopped
[ "$runner_stop" != CANCELLED ] || {{ runner_why=CANCELLED; exit {CANCELLED}; }}
exit 0
"""


def on_this_machine(plan: Plan, _step: StepSpec, launches: Iterable[ListedLaunch]) -> str:
    """The script where no scheduler gives an allocation: one process of this machine, so that no two launches overlap.

    Args:
        plan: of a job as large as the largest launch, whose time limit is that of all of them together.
    """
    parts = [
        "#!/bin/bash",
        "# The launches of a study, one after another.",
        "set -uo pipefail",
        "umask 077",
        f'cd -- "$(dirname -- "${{BASH_SOURCE[0]}}")" || exit {NO_RUN_DIRECTORY}\n',
        supervised_script.OWN_JOB_ID,
        supervised_script.marker(),
        f"runner_limit={plan.walltime_s}   # seconds",
        BEGIN,
        "runner_free() { :; }   # a launch's script ends when all of its processes have\n",
        *(f"{_function(launch)} {_arguments(launch)}" for launch in launches),
        END,
    ]
    return "\n".join(parts)


def _function(launch: ListedLaunch) -> str:
    return "runner_begin" if launch.with_next else "runner_launch"


def _arguments(launch: ListedLaunch) -> str:
    return quoted_arguments(texts(launch.directory, str(launch.needs_s)))


def on_nodes(launch: ListedLaunch) -> str:
    """The line that runs a launch on its nodes of an allocation."""
    nodes = f'"${{runner_nodes[@]:{launch.first_node}:{launch.nodes}}}"'
    return f'{_function(launch)} {_arguments(launch)} "$runner_cpus" {nodes}'
