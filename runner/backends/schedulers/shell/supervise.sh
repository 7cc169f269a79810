# shellcheck shell=bash disable=SC2034,SC2154,SC2329  # what job.sh and other files set and call
# Functions of scripts that no scheduler watches. runner_supervise does for its children what
# `srun --kill-on-bad-exit=1 --wait` and a time limit do elsewhere; they are the ranks of this node, or one ssh
# connection for each node. Nothing in this file starts a rank but runner_start_ranks.

runner_why=   # what ended the children early: CANCELLED TIMEOUT NODE_FAIL FAILED
runner_grace=30   # seconds between asking children to end, and killing them
runner_children=()

# runner_job: this process, when it started, and the machine's boot. proc(5): the start is field 22 of stat, the 20th
# after the command's name. The same as runner.backends.schedulers.local makes of a process number.
runner_be_job() {
  local runner_stat runner_fields runner_boot
  read -r runner_stat </proc/$$/stat
  read -ra runner_fields <<<"${runner_stat##*) }"
  read -r runner_boot </proc/sys/kernel/random/boot_id
  runner_job="$$.${runner_fields[19]}.${runner_boot%%-*}"
  export RUNNER_JOB_ID="$runner_job"   # in the ranks' records: the run is found by it again
  printf '%s\n' "$runner_job" >job.id.part && mv -f job.id.part job.id
  trap runner_mark EXIT
}

# The script leaves its exit marker however it ends, except by SIGKILL; runner_at_end is run before, where there is one.
runner_mark() {
  local runner_code=$?
  if declare -F runner_at_end >/dev/null; then runner_at_end; fi
  printf '{"job":"%s","exit":%d,"end_s":%d,"why":"%s"}\n' "$runner_job" "$runner_code" "$(date +%s)" "$runner_why" |
    runner_leave exit.json
}

runner_end_at_signals() {
  trap 'runner_why=${runner_why:-CANCELLED}' TERM INT
  trap '' HUP   # the terminal may go
}

# Starts ranks in the background, each with logs of its own. Each calls runner_rank of job.sh, and leads a process group
# of its own, so that nothing of it is left. Arguments: the number of the first in the world; how many; of the world.
runner_start_ranks() {
  local runner_i runner_number
  set -m
  for (( runner_i = 0; runner_i < $2; runner_i++ )); do
    runner_number=$(( $1 + runner_i ))
    (
      export RANK="$runner_number" LOCAL_RANK="$runner_i" WORLD_SIZE="$3" LOCAL_WORLD_SIZE="$2"
      runner_rank
    ) >"logs/rank-$runner_number.out" 2>"logs/rank-$runner_number.err" </dev/null &
    runner_children[runner_i]=$!
  done
}

# What runner_supervise does with children that are ranks.
runner_is_over() { kill -KILL -- "-$2" 2>/dev/null; }   # what it has left behind. Index, process, exit status.
runner_ask_to_end() { runner_tell TERM ''; }
runner_warn() { runner_tell USR1 ''; }
runner_kill() { runner_tell KILL -; }
runner_turn() { sleep 0.2; }
runner_tell() {
  local runner_i
  for runner_i in "${!runner_children[@]}"; do kill "-$1" -- "$2${runner_children[runner_i]}" 2>/dev/null; done
}

# Waits until all children have ended; the first failure, or the time limit, ends the others. Leaves runner_exit, the
# first exit status but zero. Arguments, in seconds: the time limit, from the script's start (0: kept elsewhere); how
# long the others may go on after the first has ended well (0: for as long as they need).
runner_supervise() {
  local runner_i runner_child runner_code runner_first='' runner_told='' runner_warned=''
  local runner_near=$(( $1 - ($1 < 600 ? $1 / 5 : 120) ))
  runner_exit=0
  while [ "${#runner_children[@]}" -gt 0 ]; do
    for runner_i in "${!runner_children[@]}"; do
      runner_child=${runner_children[runner_i]}
      kill -0 "$runner_child" 2>/dev/null && continue
      wait "$runner_child"
      runner_code=$?
      unset "runner_children[runner_i]"
      runner_is_over "$runner_i" "$runner_child" "$runner_code"
      runner_first=${runner_first:-$SECONDS}
      [ "$runner_code" -eq 0 ] && continue
      [ "$runner_exit" -ne 0 ] || runner_exit=$runner_code
      runner_why=${runner_why:-FAILED}
    done
    [ "${#runner_children[@]}" -gt 0 ] || break
    if [ "$1" -gt 0 ] && [ "$SECONDS" -ge "$1" ]; then runner_why=${runner_why:-TIMEOUT}; fi
    if [ "$2" -gt 0 ] && [ -n "$runner_first" ] && [ "$(( SECONDS - runner_first ))" -ge "$2" ]; then
      runner_why=${runner_why:-FAILED}
    fi
    if [ -n "$runner_told" ]; then
      if [ "$(( SECONDS - runner_told ))" -ge "$runner_grace" ]; then runner_kill; fi
    elif [ -n "$runner_why" ]; then
      runner_told=$SECONDS
      runner_ask_to_end
    elif [ "$1" -gt 0 ] && [ -z "$runner_warned" ] && [ "$SECONDS" -ge "$runner_near" ]; then
      runner_warned=yes
      runner_warn   # near the time limit: checkpoint and leave
    fi
    runner_turn
  done
}

# The script's end after runner_supervise.
runner_exit_as_supervised() {
  case $runner_why in
  TIMEOUT) exit 124 ;;
  CANCELLED) exit 143 ;;
  NODE_FAIL | FAILED) exit "$(( runner_exit ? runner_exit : 1 ))" ;;
  esac
  exit 0
}
