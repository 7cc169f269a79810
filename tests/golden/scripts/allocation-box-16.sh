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
runner_job=$SLURM_JOB_ID
runner_enter "$SLURM_SUBMIT_DIR"
sha256sum --check --quiet >&2 <<'END' || exit 74
SHA-256  lib/common.sh
SHA-256  lib/slurm.sh
SHA-256  lib/supervise.sh
SHA-256  lib/launches.sh
SHA-256  lib/slurm-launches.sh
END
. lib/common.sh && . lib/slurm.sh && . lib/supervise.sh && . lib/launches.sh && . lib/slurm-launches.sh || exit 74

unset -v "${!SQUEUE_@}" "${!SCONTROL_@}"
trap runner_mark EXIT

runner_find_nodes 2 < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
runner_order_nodes
runner_cpus=$(runner_fewest_cpus)
runner_limit=3600
runner_expect_launches

runner_launch /lustre/u/runs/s-study/launches/g0016-full-r1/20261122-120000-hvd-16 200 "$runner_cpus" "${runner_nodes[@]:0:2}"
runner_begin /lustre/u/runs/s-study/launches/g0001-solo-n000d2-r1/20261122-120010-hvd-1 140 "$runner_cpus" "${runner_nodes[@]:0:1}"
runner_launch '/lustre/u/my '\''runs'\''/$HOME/launches/g0001-solo-n001d3-r1/`id`' 140 "$runner_cpus" "${runner_nodes[@]:1:1}"
runner_end_launches
