#!/bin/bash
# Without an argument: the job's controller. With one: the part of the node of that number.
set -uo pipefail
umask 077
cd -- "$(dirname -- "${BASH_SOURCE[0]}")" || exit 72
runner_run=$(pwd -P)

runner_hosts=(nodea nodeb)
runner_counts=(4 4)

if [ $# -eq 0 ]; then

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

runner_ssh=(ssh -T -x -o BatchMode=yes -o ConnectTimeout=15 -o ServerAliveInterval=15 -o ServerAliveCountMax=3 \
  -o ControlMaster=no -o ClearAllForwardings=yes)
RUNNER_RDV_HOST=$("${runner_ssh[@]}" -G -- "${runner_hosts[0]}" | sed -n "s/^hostname //p")
RUNNER_RDV_HOST=${RUNNER_RDV_HOST:-"${runner_hosts[0]##*@}"}
RUNNER_RDV_PORT=$(( 12000 + $$ % 16000 ))   # below ip_local_port_range
RUNNER_RDV_KEY=$(head -c 16 /dev/urandom | base64)   # only this job's ranks know it
export RUNNER_RDV_KEY

runner_begin() {   # what the bash of a node reads first
  printf 'cd -- %q || exit 72\n' "$runner_run"
  printf 'export RUNNER_JOB_ID=%q\n' "$RUNNER_JOB_ID"
  printf 'export RUNNER_RDV_HOST=%q\n' "$RUNNER_RDV_HOST"
  printf 'export RUNNER_RDV_PORT=%q\n' "$RUNNER_RDV_PORT"
  printf 'export RUNNER_RDV_KEY=%q\n' "$RUNNER_RDV_KEY"
  printf 'exec bash ./job.sh %d\n' "$1"
}

runner_limit=86400 runner_near=86280   # seconds

runner_links=() runner_ways=()
for runner_i in "${!runner_hosts[@]}"; do
  runner_fifo=$(mktemp -u) && mkfifo -m 600 -- "$runner_fifo" || exit
  exec {runner_way}<>"$runner_fifo"
  exec {runner_ear}<"$runner_fifo"
  rm -f -- "$runner_fifo"
  runner_ways[runner_i]=$runner_way
  (
    # Only the controller keeps these pipes open: when it ends, all nodes notice.
    for runner_fd in "${runner_ways[@]}"; do exec {runner_fd}>&-; done
    exec "${runner_ssh[@]}" -- "${runner_hosts[runner_i]}" 'exec bash -s' \
      < <(runner_begin "$runner_i"; exec cat <&"$runner_ear")
  ) &
  runner_links[runner_i]=$!
  exec {runner_ear}<&-
done

# Orders are single characters, so that a node never reads half of one. T: end, U: the time limit is near, H: I am here.
runner_order() {
  for runner_i in "${!runner_links[@]}"; do printf '%s' "$1" >&"${runner_ways[runner_i]}"; done
}
runner_beat=0
runner_exit=0 runner_first='' runner_told='' runner_warned=''
while [ "${#runner_links[@]}" -gt 0 ]; do
  for runner_i in "${!runner_links[@]}"; do
    runner_link=${runner_links[runner_i]}
    kill -0 "$runner_link" 2>/dev/null && continue
    wait "$runner_link"; runner_code=$?
    runner_way=${runner_ways[runner_i]}
    exec {runner_way}>&-
    unset "runner_links[runner_i]" "runner_ways[runner_i]"
    runner_first=${runner_first:-$SECONDS}
    [ "$runner_code" -eq 0 ] && continue
    if [ "$runner_code" -eq 255 ] && [ -z "$runner_why" ]; then   # ssh's own
      runner_why=NODE_FAIL
      echo "hosts: error: Node failure on ${runner_hosts[runner_i]}: its ssh connection has ended" >&2
    fi
    [ "$runner_exit" -ne 0 ] || runner_exit=$runner_code
    runner_why=${runner_why:-FAILED}
  done
  [ "${#runner_links[@]}" -gt 0 ] || break
  if [ "$SECONDS" -ge "$runner_limit" ]; then runner_why=${runner_why:-TIMEOUT}; fi
  if [ -n "$runner_first" ] && [ "$(( SECONDS - runner_first ))" -ge 60 ]; then
    runner_why=${runner_why:-FAILED}
  fi
  if [ -n "$runner_told" ]; then
    if [ "$(( SECONDS - runner_told ))" -ge 38 ]; then kill -KILL "${runner_links[@]}" 2>/dev/null; fi
  elif [ -n "$runner_why" ]; then
    runner_told=$SECONDS
    runner_order T
  elif [ -z "$runner_warned" ] && [ "$SECONDS" -ge "$runner_near" ]; then
    runner_warned=yes
    runner_order U   # near the time limit: checkpoint and leave
  fi
  if [ "$SECONDS" -ge "$runner_beat" ]; then
    runner_beat=$(( SECONDS + 5 ))
    runner_order H
  fi
  sleep 0.2
done
case $runner_why in
TIMEOUT) exit 124 ;;
CANCELLED) exit 143 ;;
NODE_FAIL | FAILED) exit "$(( runner_exit ? runner_exit : 1 ))" ;;
esac
exit 0

fi

while IFS= read -r runner_i; do unset -f "$runner_i"; done < <(compgen -A function)
while IFS= read -r runner_i; do
  case $runner_i in
  HOME | USER | LOGNAME | SHELL | PATH | LANG | TMPDIR | CUDA_VISIBLE_DEVICES | RUNNER_JOB_ID | RUNNER_RDV_HOST | RUNNER_RDV_PORT | RUNNER_RDV_KEY) ;;
  *) unset -v "$runner_i" 2>/dev/null ;;
  esac
done < <(compgen -e)

export USER="${USER:-$(id -un)}"
runner_job=$RUNNER_JOB_ID runner_why=
trap 'runner_why=${runner_why:-ENDED}' TERM INT HUP
trap : PIPE   # ssh may be gone

export RUNNER_ENV_NCCL_DEBUG='INFO'
export RUNNER_ENV_NCCL_DEBUG_FILE='/results/nccl/%h.%p.log'
export RUNNER_ENV_NCCL_DEBUG_SUBSYS='INIT,NET'
export RUNNER_ENV_PYTHONNOUSERSITE='1'
export RUNNER_ENV_PYTHONUNBUFFERED='1'
export RUNNER_ENV_RUNNER_RDV_HOST="${RUNNER_RDV_HOST}"
export RUNNER_ENV_RUNNER_RDV_PORT="${RUNNER_RDV_PORT}"
export RUNNER_ENV_RUNNER_RDV_KEY="${RUNNER_RDV_KEY}"
export runner_stage=/tmp/gpu-runner-stage-"${runner_job}"

if [ "$1" -eq 0 ]; then
# For the record, on the side: nothing waits for it.
runner_version() {
  runner_i=$(timeout 10 "${@:2}" 2>&1 | grep '[0-9][.][0-9]') || return 0   # not a warning before it
  printf '%s\t%s\n' "$1" "${runner_i%%$'\n'*}"
}
{
  runner_version charliecloud ch-run --version
} >versions 2>/dev/null </dev/null &
fi

trap 'rm -rf -- "${runner_stage}" >>logs/cleanup.log 2>&1' EXIT

/bin/bash -c \
  'set -u; set -o pipefail
is_left() {
  case $1 in "$4") return 1 ;; [0-9]*) ;; *) return 1 ;; esac
  [ -n "${2// }" ] || { [ "$3" = yes ]; return; }
  case $1 in *.*.*.*) ;; *.*) return 1 ;; esac
  [ "${1%%[!0-9]*}" -lt "${4%%[!0-9]*}" ] || return 1
  case " $2 " in *" ${1%%[!0-9]*} "*) return 1 ;; esac
}
boot=$(cat /proc/sys/kernel/random/boot_id) space=$(readlink /proc/self/ns/pid)
session() { local stat; read -r stat <"$1" && set -- ${stat##*) } && echo "$4"; } 2>/dev/null
is_dead() {
  [[ ${1##*/gpu-runner-stage-} =~ ^[0-9]+[.][0-9]+[.][0-9a-f]{8}$ ]] || return
  local own booted numbers process
  read -r own booted numbers <"$1/session" || return
  [ "$booted" = "$boot" ] || return 0
  [ "$numbers" = "$space" ] || return
  for process in /proc/[0-9]*/stat; do [ "$(session "$process")" != "$own" ] || return; done
} 2>/dev/null
say() { echo "$(hostname): cannot stage the image: $*" >&2; rm -rf -- "$stage"; exit 1; }
stage=$1 live=$2 alone=$3 image=$4 bytes=$5 sum=$6; shift 6
ours() { [ ! -L "$1" ] && [ -O "$1" ] && [ "$(cat -- "$1/node")" = "$(uname -n)" ]; } 2>/dev/null
for old in "${stage%/*}/gpu-runner-stage-"*; do
  ours "$old" || continue
  if is_dead "$old" || is_left "${old##*/gpu-runner-stage-}" "$live" "$alone" "${stage##*/gpu-runner-stage-}"; then
    rm -rf -- "$old"; fi
done
if ours "$stage"; then rm -rf -- "$stage"; fi   # of an earlier start of this job
mkdir -m 700 -- "$stage" && uname -n >"$stage/node" || {
  echo "$(hostname): cannot stage the image: $stage cannot be made, or is no disk of this node alone" >&2; exit 1; }
echo "$(session /proc/self/stat) $boot $space" >"$stage/session"
room=$(df --output=avail -B1 -- "$stage" | tail -n 1)
[ "$room" -ge "$bytes" ] || say "no room: $bytes bytes needed, $room free in ${stage%/*}"
found=$(tee -- "$stage/image.sqsh" <"$image" | sha256sum) || say "the copy of $image failed"
[ "$(stat -c %s -- "$stage/image.sqsh")" = "$bytes" ] || say "the copy has another size than $image had"
[ -z "$sum" ] || [ "${found%% *}" = "$sum" ] || say "$image is not what was converted: its SHA-256 differs"
[ $# -eq 0 ] || exec "$@"
' \
  bash "${runner_stage}" '' no /lustre/u/images/sha256-1f0ce1d2a3b4.sqsh 7100000000 \
  0badc0ffee0badc0ffee0badc0ffee0badc0ffee0badc0ffee0badc0ffee0bad /bin/bash -c \
  'for place in "$1" "$1/mnt"; do
  [ -e "$place" ] || mkdir -m 700 -- "$place"
  [ "$(LC_ALL=C stat -c '\''%u %F'\'' -- "$place")" = "$(id -u) directory" ] && chmod 700 -- "$place" || {
    stat -c "$(hostname): cannot mount the image at %n: it is a %F of %U, not $(id -un)'\''s; fix: have it removed" \
      -- "$place" >&2; exit 1; }
done
' \
  bash /var/tmp/"${USER}".ch >"logs/node-${runner_hosts[$1]##*@}.log" 2>&1 || exit 71

export RUNNER_NODE="${runner_hosts[$1]}"   # in the ranks' records: two nodes may have one host name
runner_base=0
for (( runner_i = 0; runner_i < $1; runner_i++ )); do runner_base=$(( runner_base + runner_counts[runner_i] )); done
set -m   # each rank leads a process group of its own, so that nothing of it is left
runner_ranks=()
for (( runner_i = 0; runner_i < runner_counts[$1]; runner_i++ )); do
  runner_rank=$(( runner_base + runner_i ))
  (
    export RANK="$runner_rank" LOCAL_RANK="$runner_i" WORLD_SIZE=8 LOCAL_WORLD_SIZE="${runner_counts[$1]}"
    exec /bin/bash -c 'trap "" HUP INT TERM USR1 USR2; exec "$@"' bash ch-run --join-ct=4 \
  --join-tag="${runner_job}" --set-env --cd /results/recipe --bind "${runner_run}":/results \
  "${runner_stage}"/image.sqsh -- /bin/bash -c \
  'for runner_i in "${!RUNNER_ENV_@}"; do export "${runner_i#RUNNER_ENV_}=${!runner_i}"; unset -v "$runner_i"; done; exec "$@"' \
  bash python3 -u /results/lib/launch.py --run /results --umask 022 --caches node --world 8 \
  --local-sizes 4,4 --leave-together 60 -- python3 -u main.py --model resnet50 --batch-size 256 \
  --image-size 224 --precision amp-bf16 --channels-last
  ) >"logs/rank-$runner_rank.out" 2>"logs/rank-$runner_rank.err" </dev/null &
  runner_ranks[runner_i]=$!
done

runner_tell() {
  for runner_i in "${!runner_ranks[@]}"; do kill "-$1" -- "$2${runner_ranks[runner_i]}" 2>/dev/null; done
}
runner_heard=$SECONDS runner_grace=30
runner_exit=0 runner_first='' runner_told=''
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
  if [ -n "$runner_first" ] && [ "$(( SECONDS - runner_first ))" -ge 60 ]; then
    runner_why=${runner_why:-FAILED}
  fi
  if [ -n "$runner_told" ]; then
    if [ "$(( SECONDS - runner_told ))" -ge "$runner_grace" ]; then runner_tell KILL -; fi
  elif [ -n "$runner_why" ]; then
    runner_told=$SECONDS
    runner_tell TERM ''
  fi
  if [ "$runner_why" = GONE ]; then
    sleep 0.2
    continue
  fi
  runner_word=
  read -r -n 1 -t 0.2 runner_word
  runner_code=$?   # more than 128: nothing yet
  case $runner_word in
  T) runner_why=${runner_why:-ENDED} ;;
  U) runner_tell USR1 '' ;;
  esac
  if [ -n "$runner_word" ]; then
    runner_heard=$SECONDS
  elif [ "$runner_code" -le 128 ] || [ "$(( SECONDS - runner_heard ))" -ge 60 ]; then
    runner_why=GONE runner_grace=10
  fi
done
case $runner_why in
FAILED) exit "$(( runner_exit == 0 || runner_exit == 255 ? 1 : runner_exit ))" ;;   # 255 would be ssh's
ENDED | GONE) exit 143 ;;
esac
exit 0
