#!/bin/bash
#SBATCH --job-name=horovod-pytorch
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=8
#SBATCH --gpus-per-node=8
#SBATCH --mem=0
#SBATCH --exclusive
#SBATCH --time=00:20:00
#SBATCH --signal=B:USR1@120
#SBATCH --no-requeue
#SBATCH --export=NONE
#SBATCH --output=logs/batch.out
#SBATCH --error=logs/batch.err
set -uo pipefail; umask 077
# Goes to directory $1. Others may have taken its name by now, or one on the way, and may do so at any moment: it, each
# link, and what lies where all may write must be yours, the system's or of users $2.
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
    case $open$kind$rest in 0[!l]*/*) uid=0 ;; esac   # a directory on the way
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
runner_job=$SLURM_JOB_ID runner_run=$SLURM_SUBMIT_DIR
[ -z "${PYXIS_CONTAINER_IMAGE-}" ] || cd -- "$runner_run" || exit 70
runner_enter "$runner_run"
# What this script calls is in these files, with the reasons. If one was changed since, the job ends with 74.
sha256sum --check --quiet >&2 <<'END' || exit 74
SHA-256  lib/common.sh
SHA-256  lib/slurm.sh
SHA-256  lib/pyxis-leftovers.sh
SHA-256  lib/leftovers.sh
SHA-256  lib/rank.sh
SHA-256  lib/launch.py
END
. lib/common.sh && . lib/slurm.sh || exit 74

# What runs must not depend on your login shell.
runner_unset_login
runner_unlock_memory

runner_find_nodes 2 < <(scontrol show hostnames "$SLURM_JOB_NODELIST")   # else it ends with 73
runner_meet "${runner_hosts[0]}" "$runner_job"   # where rank 0 serves: a container has no Slurm to ask
runner_cpus=$(( $(runner_fewest_cpus) / 8 ))   # of each rank

export MELLANOX_VISIBLE_DEVICES='all'
export NCCL_DEBUG='INFO'
export NCCL_DEBUG_FILE='/results/nccl/%h.%p.log'
export NCCL_DEBUG_SUBSYS='INIT,NET'
export OMP_NUM_THREADS='8'
export PYTHONNOUSERSITE='1'
export PYTHONUNBUFFERED='1'
runner_record_versions slurm 'srun --version' enroot 'enroot version'   # in `versions`; nothing waits for it

runner_ask_for_live   # jobs of yours that Slurm knows; what others have left on a node may go
# Once a node, not once a rank: removes containers that killed jobs of yours have left there.
srun --mpi=none --nodes=2 --ntasks=2 --ntasks-per-node=1 --kill-on-bad-exit=1 --output=logs/node-%N.log \
  /bin/bash "$runner_run"/lib/pyxis-leftovers.sh "$runner_live" yes "$runner_job" && ! runner_is_lost || exit 71

# One task for each GPU. Signals go to the ranks through this script: it is outside their containers.
runner_pass_signals
srun --mpi=none --nodes=2 --ntasks=16 --ntasks-per-node=8 --cpus-per-task="$runner_cpus" --cpu-bind=none \
  --kill-on-bad-exit=1 --wait=60 --output=logs/rank-%t.out --error=logs/rank-%t.err \
  --container-image=/lustre/u/images/sha256-1f0ce1d2a3b4.sqsh --container-mounts="$runner_run":/results \
    --container-workdir=/results/recipe --no-container-mount-home --no-container-entrypoint --no-container-remap-root \
    --container-env=RUNNER_RDV_HOST,RUNNER_RDV_PORT,RUNNER_RDV_KEY,PYXIS_VERSION,MELLANOX_VISIBLE_DEVICES,NCCL_DEBUG,NCCL_DEBUG_FILE,NCCL_DEBUG_SUBSYS,OMP_NUM_THREADS,PYTHONNOUSERSITE,PYTHONUNBUFFERED \
  /bin/bash /results/lib/rank.sh python3 -s -u -X pycache_prefix= /results/lib/launch.py --run /results --umask 022 \
    --caches node --world 16 --local-sizes 8,8 -- \
  python3 -u main.py --model resnet50 --batch-size 256 --image-size 224 --precision amp-bf16 --channels-last &
runner_finish $!
