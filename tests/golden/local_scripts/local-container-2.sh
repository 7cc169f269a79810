#!/bin/bash
set -uo pipefail
umask 077
while IFS= read -r runner_i; do unset -f "$runner_i"; done < <(compgen -A function)
while IFS= read -r runner_i; do
  case $runner_i in
  HOME | USER | LOGNAME | SHELL | PATH | LANG | TMPDIR | CUDA_VISIBLE_DEVICES) ;;
  *) unset -v "$runner_i" 2>/dev/null ;;
  esac
done < <(compgen -e)

export USER="${USER:-$(id -un)}"
cd -- "$(dirname -- "${BASH_SOURCE[0]}")" || exit 72
runner_run=$(pwd -P)

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

trap 'runner_why=${runner_why:-CANCELLED}' TERM INT
trap '' HUP   # the terminal may go

export RUNNER_RDV_HOST=127.0.0.1
export RUNNER_RDV_PORT=$(( 12000 + $$ % 16000 ))   # below ip_local_port_range
RUNNER_RDV_KEY=$(head -c 16 /dev/urandom | base64)   # only this job's ranks know it
export RUNNER_RDV_KEY

export RUNNER_ENV_MKL_NUM_THREADS='1'
export RUNNER_ENV_OMP_NUM_THREADS='1'
export RUNNER_ENV_PYTHONNOUSERSITE='1'
export RUNNER_ENV_PYTHONUNBUFFERED='1'
export RUNNER_ENV_RUNNER_RDV_HOST="${RUNNER_RDV_HOST}"
export RUNNER_ENV_RUNNER_RDV_PORT="${RUNNER_RDV_PORT}"
export RUNNER_ENV_RUNNER_RDV_KEY="${RUNNER_RDV_KEY}"

# For the record, on the side: nothing waits for it.
runner_version() {
  runner_i=$(timeout 10 "${@:2}" 2>&1 | grep '[0-9][.][0-9]') || return 0   # not a warning before it
  printf '%s\t%s\n' "$1" "${runner_i%%$'\n'*}"
}
{
  runner_version charliecloud ch-run --version
} >versions 2>/dev/null </dev/null &

/bin/bash -c \
  'for place in "$1" "$1/mnt"; do
  [ -e "$place" ] || mkdir -m 700 -- "$place"
  [ "$(LC_ALL=C stat -c '\''%u %F'\'' -- "$place")" = "$(id -u) directory" ] && chmod 700 -- "$place" || {
    stat -c "$(hostname): cannot mount the image at %n: it is a %F of %U, not $(id -un)'\''s; fix: have it removed" \
      -- "$place" >&2; exit 1; }
done
' \
  bash /var/tmp/"${USER}".ch >"logs/node-$(hostname).log" 2>&1 || exit 71

set -m   # each rank leads a process group of its own, so that nothing of it is left
runner_ranks=()
for (( runner_i = 0; runner_i < 2; runner_i++ )); do
  runner_rank=$runner_i
  (
    export RANK="$runner_rank" LOCAL_RANK="$runner_i" WORLD_SIZE=2 LOCAL_WORLD_SIZE=2
    exec /bin/bash -c 'trap "" HUP INT TERM USR1 USR2; exec "$@"' bash ch-run --join-ct=2 \
  --join-tag="${runner_job}" --set-env --cd /results/recipe --bind "${runner_run}":/results \
  /lustre/u/images/sha256-1f0ce1d2a3b4.sqsh -- /bin/bash -c \
  'for runner_i in "${!RUNNER_ENV_@}"; do export "${runner_i#RUNNER_ENV_}=${!runner_i}"; unset -v "$runner_i"; done; exec "$@"' \
  bash python3 -u /results/lib/launch.py --run /results --umask 022 --caches node --world 2 \
  --local-sizes 2 --leave-together 60 -- python3 -u main.py --model tiny --batch-size 2 --image-size \
  32 --precision fp32 --warmup-steps 5 --steps 30 --demonstration --device cpu
  ) >"logs/rank-$runner_rank.out" 2>"logs/rank-$runner_rank.err" </dev/null &
  runner_ranks[runner_i]=$!
done

runner_limit=86400 runner_near=86280   # seconds

runner_tell() {
  for runner_i in "${!runner_ranks[@]}"; do kill "-$1" -- "$2${runner_ranks[runner_i]}" 2>/dev/null; done
}
runner_exit=0 runner_first='' runner_told='' runner_warned=''
while [ "${#runner_ranks[@]}" -gt 0 ]; do
  for runner_i in "${!runner_ranks[@]}"; do
    runner_rank=${runner_ranks[runner_i]}
    kill -0 "$runner_rank" 2>/dev/null && continue
    wait "$runner_rank"; runner_code=$?
    kill -KILL -- "-$runner_rank" 2>/dev/null   # what it has left behind
    unset "runner_ranks[runner_i]"
    runner_first=${runner_first:-$SECONDS}
    [ "$runner_code" -eq 0 ] && continue
    [ "$runner_exit" -ne 0 ] || runner_exit=$runner_code
    runner_why=${runner_why:-FAILED}
  done
  [ "${#runner_ranks[@]}" -gt 0 ] || break
  if [ "$SECONDS" -ge "$runner_limit" ]; then runner_why=${runner_why:-TIMEOUT}; fi
  if [ -n "$runner_first" ] && [ "$(( SECONDS - runner_first ))" -ge 60 ]; then
    runner_why=${runner_why:-FAILED}
  fi
  if [ -n "$runner_told" ]; then
    if [ "$(( SECONDS - runner_told ))" -ge 30 ]; then runner_tell KILL -; fi
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
TIMEOUT) exit 124 ;;
CANCELLED) exit 143 ;;
NODE_FAIL | FAILED) exit "$(( runner_exit ? runner_exit : 1 ))" ;;
esac
exit 0
