#!/bin/bash
#SBATCH --job-name=horovod-pytorch
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=8
#SBATCH --gpus-per-node=a100:8
#SBATCH --cpus-per-task=32
#SBATCH --mem=0
#SBATCH --exclusive
#SBATCH --time=01:00:00
#SBATCH --signal=B:USR1@120
#SBATCH --no-requeue
#SBATCH --export=NONE
#SBATCH --output=logs/batch.out
#SBATCH --error=logs/batch.err
# The launches of a study, one after another, each with all that this job has of its nodes.
set -uo pipefail
umask 077
unset SLURM_EXPORT_ENV
unset -v "${!SQUEUE_@}" "${!SCONTROL_@}"
runner_job=$SLURM_JOB_ID
cd -- "$SLURM_SUBMIT_DIR" || exit 72
runner_why=
runner_mark() {
  local runner_code=$?
  printf '{"job":"%s","exit":%d,"end_s":%d,"why":"%s"}\n' "$runner_job" "$runner_code" "$(date +%s)" \
    "$runner_why" >exit.json.part && mv -f exit.json.part exit.json
}
trap runner_mark EXIT

mapfile -t runner_hosts < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
[ "${#runner_hosts[@]}" -eq 2 ] || {
  echo "planned 2 nodes, allocated ${#runner_hosts[@]}" >&2; exit 73; }
declare -A runner_leaf=() runner_count=()
while read -r runner_switch runner_names; do
  while read -r runner_i; do runner_leaf[$runner_i]=$runner_switch; done < <(scontrol show hostnames "$runner_names")
done < <(timeout 60 scontrol show topology 2>/dev/null |
  sed -nE 's/^SwitchName=(\S+) Level=0 .*Nodes=(\S+).*/\1 \2/p')
for runner_i in "${runner_hosts[@]}"; do
  runner_switch=${runner_leaf[$runner_i]:--}
  runner_count[$runner_switch]=$(( ${runner_count[$runner_switch]:-0} + 1 ))
done
runner_n=0
for runner_i in "${runner_hosts[@]}"; do
  runner_switch=${runner_leaf[$runner_i]:--}
  printf '%d\t%s\t%d\t%s\n' "${runner_count[$runner_switch]}" "$runner_switch" "$(( runner_n++ ))" "$runner_i"
done | LC_ALL=C sort -t $'\t' -k1,1nr -k2,2 -k3,3n | awk -F '\t' '{ print $4 "\t" $2 }' >nodes
if [ -r ../nodes ] && [ "$(LC_ALL=C sort ../nodes)" = "$(LC_ALL=C sort nodes)" ]; then
  cp ../nodes nodes
elif [ ! -e ../nodes ]; then
  cp nodes ../nodes
fi
mapfile -t runner_nodes < <(cut -f 1 nodes)

runner_cpus=$(tr , '\n' <<<"$SLURM_JOB_CPUS_PER_NODE" | sort -n | head -n 1)
runner_cpus=${runner_cpus%%[!0-9]*}
runner_limit=3600   # seconds
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

runner_free() {
  local runner_until=$(( SECONDS + 300 )) runner_steps
  while :; do
    if runner_steps=$(timeout 20 squeue --noheader --steps --jobs="$SLURM_JOB_ID" --format=%i 2>/dev/null); then
      runner_steps=$(grep -E '\.[0-9]+$' <<<"$runner_steps") || return 0
    else
      runner_steps=
    fi
    if [ "$SECONDS" -ge "$(( runner_until + 300 ))" ]; then
      echo "after its launch's end a step still holds its nodes: $runner_steps" >&2
      runner_stop=BUSY
      return 0
    fi
    # shellcheck disable=SC2086
    [ "$SECONDS" -lt "$runner_until" ] || timeout 20 scancel $runner_steps
    sleep 0.5
  done
}

runner_launch /lustre/u/runs/s-study/launches/g0016-full-r1/20261122-120000-hvd-16 200 "$runner_cpus" "${runner_nodes[@]:0:2}"
runner_begin /lustre/u/runs/s-study/launches/g0001-solo-n000d2-r1/20261122-120010-hvd-1 140 "$runner_cpus" "${runner_nodes[@]:0:1}"
runner_launch '/lustre/u/my '\''runs'\''/$HOME/launches/g0001-solo-n001d3-r1/`id`' 140 "$runner_cpus" "${runner_nodes[@]:1:1}"
[ -z "$runner_stop" ] || printf '%s\n' "$runner_stop" >stopped
[ "$runner_stop" != CANCELLED ] || { runner_why=CANCELLED; exit 143; }
exit 0
