#!/bin/bash
set -uo pipefail; umask 077
runner_enter() {
  local PATH=/usr/bin:/bin${PATH:+:$PATH} at='' rest=$1/ open=0 uid mode kind name first known
  first=$(awk '$1 == "UID_MIN" && $2 ~ /^[0-9]+$/ { print $2; exit }' /etc/login.defs 2>/dev/null)
  known=,$(id -u),65534,4294967294,${2-},${RUNNER_TRUST-},
  cd -P -- "$1" || exit 72
  while [ -n "$rest" ]; do
    case ${rest%%/*} in '' | .) open=0 ;; ..) at=${at%/*} open=0 ;; *) at=$at/${rest%%/*} ;; esac
    rest=${rest#*/}
    read -r uid mode kind name < <(stat -c '%u %a %A %U' -- "${at:-/}") || uid=4294967295 kind=l name=-
    case $known in *,"$uid",* | *,"$name",*) uid=0 ;; esac
    case $open$kind$rest in 0[!l]*/*) uid=0 ;; esac
    [ "$uid" -lt "${first:-1000}" ] || { open=2; break; }
    case $kind in
    l*) rest=$(readlink -- "$at")/$rest; case $rest in /*) at='' open=0 ;; *) at=${at%/*} ;; esac ;;
    *) open=$(( 0$mode & 2 )) ;;
    esac
  done
  [ "$open" -ne 0 ] || ! [ . -ef "${at:-/}" ] || return 0
  echo "$1: $at is another user's by now, or open to all; submit again, from (--runs: in) a directory of yours" >&2
  exit 82
}
cd -- "$(dirname -- "${BASH_SOURCE[0]}")" || exit 72
runner_run=$(pwd -P)

sha256sum --check --quiet >&2 <<'END' || exit 74
SHA-256  lib/common.sh
SHA-256  lib/supervise.sh
SHA-256  lib/hosts.sh
SHA-256  lib/charliecloud.sh
SHA-256  lib/leftovers.sh
SHA-256  lib/rank.sh
SHA-256  lib/launch.py
END
. lib/common.sh && . lib/supervise.sh && . lib/hosts.sh || exit 74

runner_hosts=(nodea nodeb)
runner_counts=(8 8)
runner_ssh=(ssh -T -x -o BatchMode=yes -o ConnectTimeout=15 -o ServerAliveInterval=15 -o ServerAliveCountMax=3 \
  -o ControlMaster=no -o ClearAllForwardings=yes)

if [ $# -eq 0 ]; then
  runner_end_at_signals
  runner_be_job
  runner_meet_at_first
  runner_control 86400 60
fi

runner_keep_only RUNNER_JOB_ID 'RUNNER_RDV_*'
runner_be_node "$1"

export RUNNER_ENV_NCCL_DEBUG='INFO'
export RUNNER_ENV_NCCL_DEBUG_FILE='/results/nccl/%h.%p.log'
export RUNNER_ENV_NCCL_DEBUG_SUBSYS='INIT,NET'
export RUNNER_ENV_PYTHONNOUSERSITE='1'
export RUNNER_ENV_PYTHONUNBUFFERED='1'
export RUNNER_ENV_RUNNER_RDV_HOST="$RUNNER_RDV_HOST"
export RUNNER_ENV_RUNNER_RDV_PORT="$RUNNER_RDV_PORT"
export RUNNER_ENV_RUNNER_RDV_KEY="$RUNNER_RDV_KEY"
[ "$runner_node" -ne 0 ] || runner_record_versions charliecloud 'ch-run --version'

/bin/bash "$runner_run"/lib/charliecloud.sh directories /var/tmp/"$USER".ch >"logs/node-${runner_hosts[runner_node]##*@}.log" 2>&1 || exit 71

runner_rank() {
  exec /bin/bash "$runner_run"/lib/charliecloud.sh run ch-run --join-ct=8 --set-env --cd /results/recipe --bind \
    "$runner_run":/results /lustre/u/images/sha256-1f0ce1d2a3b4.sqsh -- \
    /bin/bash /results/lib/rank.sh python3 -s -u -X pycache_prefix= /results/lib/launch.py --run /results --umask 022 \
      --caches node --world 16 --local-sizes 8,8 --leave-together 60 -- \
    python3 -u main.py --model resnet50 --batch-size 256 --image-size 224 --precision amp-bf16 --channels-last
}
runner_start_ranks "$(runner_first_rank)" "${runner_counts[runner_node]}" 16
runner_follow_orders 60
