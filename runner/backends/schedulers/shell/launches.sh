# shellcheck shell=bash disable=SC2034,SC2154,SC2329  # what job.sh and other files set and call
# Functions of a study's one allocation: it runs the launches' own scripts, one after another and alone, but for launches
# on one GPU of different nodes, which may run side by side. It starts in the allocation's directory; supervise.sh comes
# before. What it does with a launch follows from the launch's run directory alone:
#
#     begun           it was started; a launch without this file has used nothing
#     cancelled.json  `cancel` asks for its end: a launch that has not begun is passed over
#     exit.json       it has ended, and how; left here where its own script was killed
#     over            it ended by itself, or because it was cancelled: nothing was ending the whole allocation
#
# `launches` beside the script lists what was run, and when; `stopped` says why the rest was not. A launch's own time
# limit is kept by its own script. Nothing in this file starts a launch but runner_begin and runner_launch.

runner_ending='' runner_stop='' runner_running=0 runner_dirs=() runner_pids=() runner_begans=() runner_codes=()

runner_expect_launches() {
  trap 'runner_ending=yes runner_stop=${runner_stop:-CANCELLED}; runner_term' TERM INT
  trap : HUP USR1   # not ignored: that would be inherited
  : >launches
}

runner_term() {   # every launch that runs
  local runner_i
  for (( runner_i = 0; runner_i < runner_running; runner_i++ )); do
    [ -z "${runner_pids[runner_i]}" ] || kill -TERM "${runner_pids[runner_i]}" 2>/dev/null
  done
}

runner_end() {   # run directory, exit status, why: for a script that could not write it
  [ -e "$1/exit.json" ] ||
    printf '{"job":"%s","exit":%d,"end_s":%d,"why":"%s"}\n' "$runner_job" "$2" "$(date +%s)" "$3" |
    runner_leave "$1/exit.json"
}

# When the nodes of a launch that has ended are free again; slurm-launches.sh knows more.
runner_free() { :; }

# Arguments: run directory; seconds that must be left; arguments of its script.
runner_begin() {
  [ -z "$runner_stop" ] || return 0
  (runner_enter "$1") || { [ "$?" -ne 72 ] || runner_stop=DISK; return 0; }
  if [ -e "$1/cancelled.json" ]; then runner_end "$1" 143 CANCELLED; return 0; fi
  if [ "$(( SECONDS + $2 ))" -gt "$runner_limit" ]; then runner_stop=TIME; return 0; fi
  : >"$1/begun" || { runner_stop=DISK; return 0; }
  runner_dirs[runner_running]=$1
  runner_begans[runner_running]=$(date +%s.%N)
  bash -p "$1/job.sh" "${@:3}" >>"$1/logs/batch.out" 2>>"$1/logs/batch.err" </dev/null &
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
    printf '%s\t%s\t%s\t%s\n' "${runner_begans[runner_i]}" "$(date +%s.%N)" "${runner_codes[runner_i]}" \
      "${runner_dirs[runner_i]}" >>launches
  done
  runner_running=0
}

runner_end_launches() {
  [ -z "$runner_stop" ] || printf '%s\n' "$runner_stop" >stopped
  [ "$runner_stop" != CANCELLED ] || { runner_why=CANCELLED; exit 143; }
  exit 0
}
