#!/bin/bash
# The launches of a study, one after another.
set -uo pipefail
umask 077
cd -- "$(dirname -- "${BASH_SOURCE[0]}")" || exit 72

read -r runner_stat </proc/$$/stat
read -ra runner_fields <<<"${runner_stat##*) }"
read -r runner_boot </proc/sys/kernel/random/boot_id
runner_job="$$.${runner_fields[19]}.${runner_boot%%-*}"
export RUNNER_JOB_ID="$runner_job"   # in the ranks' records: the run is found by it again
printf '%s\n' "$runner_job" >job.id.part && mv -f job.id.part job.id

runner_why=
runner_mark() {
  local runner_code=$?
  printf '{"job":"%s","exit":%d,"end_s":%d,"why":"%s"}\n' "$runner_job" "$runner_code" "$(date +%s)" \
    "$runner_why" >exit.json.part && mv -f exit.json.part exit.json
}
trap runner_mark EXIT

runner_limit=86400   # seconds
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
    printf '{"job":"%s","exit":%d,"end_s":%d,"why":"%s"}\n' "$runner_job" "$2" "$(date +%s)" "$3" \
      >"$1/exit.json.part" && mv -f "$1/exit.json.part" "$1/exit.json"
  }
}

# Arguments: run directory; seconds that must be left; arguments of its script.
runner_begin() {
  [ -z "$runner_stop" ] || return 0
  if [ -e "$1/cancelled.json" ]; then runner_end "$1" 143 CANCELLED; return 0; fi
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
    printf '%s\t%s\t%s\t%s\n' "${runner_begans[runner_i]}" "$(date +%s.%N)" "${runner_codes[runner_i]}" \
      "${runner_dirs[runner_i]}" >>launches
  done
  runner_running=0
}

runner_free() { :; }   # a launch's script ends when all of its processes have

runner_launch /lustre/u/runs/s-study/launches/g0016-full-r1/20261122-120000-hvd-16 200
runner_begin /lustre/u/runs/s-study/launches/g0001-solo-n000d2-r1/20261122-120010-hvd-1 140
runner_launch '/lustre/u/my '\''runs'\''/$HOME/launches/g0001-solo-n001d3-r1/`id`' 140
[ -z "$runner_stop" ] || printf '%s\n' "$runner_stop" >stopped
[ "$runner_stop" != CANCELLED ] || { runner_why=CANCELLED; exit 143; }
exit 0
