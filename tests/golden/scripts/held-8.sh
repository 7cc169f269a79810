#!/bin/bash
set -uo pipefail; umask 077
cd -- "$(dirname -- "${BASH_SOURCE[0]}")" || exit 72
runner_run=$(pwd -P)

sha256sum --check --quiet >&2 <<'END' || exit 74
SHA-256  lib/common.sh
SHA-256  lib/slurm.sh
SHA-256  lib/supervise.sh
SHA-256  lib/charliecloud.sh
SHA-256  lib/leftovers.sh
SHA-256  lib/rank.sh
SHA-256  lib/launch.py
END
. lib/common.sh && . lib/slurm.sh && . lib/supervise.sh || exit 74

runner_keep_only SLURM_JOB_ID SLURM_CONF SLURM_CLUSTER_NAME
runner_unlock_memory quiet

runner_be_job
runner_find_nodes 2 < <(printf '%s\n' dgx01 dgx02)
runner_meet "${runner_hosts[0]}" "$SLURM_JOB_ID"

export RUNNER_ENV_MKL_NUM_THREADS='1'
export RUNNER_ENV_OMP_NUM_THREADS='1'
export RUNNER_ENV_PYTHONNOUSERSITE='1'
export RUNNER_ENV_PYTHONUNBUFFERED='1'
export RUNNER_ENV_RUNNER_RDV_HOST="$RUNNER_RDV_HOST"
export RUNNER_ENV_RUNNER_RDV_PORT="$RUNNER_RDV_PORT"
export RUNNER_ENV_RUNNER_RDV_KEY="$RUNNER_RDV_KEY"
runner_record_versions slurm 'srun --version' charliecloud 'ch-run --version'

srun --mpi=none --exact --nodelist=dgx01,dgx02 --nodes=2 --ntasks=2 --ntasks-per-node=1 --kill-on-bad-exit=1 \
  --output=logs/node-%N.log \
  /bin/bash "$runner_run"/lib/charliecloud.sh directories /var/tmp/"$USER".ch && ! runner_is_lost || exit 71

runner_step=''
trap 'runner_why=CANCELLED; kill -TERM "$runner_step" 2>/dev/null' TERM
srun --mpi=none --nodes=2 --ntasks=8 --exact --nodelist=dgx01,dgx02 --ntasks-per-node=4 --gpus-per-node=4 \
  --time=00:20:00 --cpus-per-task=32 --kill-on-bad-exit=1 --wait=60 --output=logs/rank-%t.out --error=logs/rank-%t.err \
  /bin/bash "$runner_run"/lib/charliecloud.sh run ch-run --join-ct=4 --set-env --cd /results/recipe --bind \
    "$runner_run":/results /lustre/u/images/sha256-1f0ce1d2a3b4.sqsh -- \
  /bin/bash /results/lib/rank.sh python3 -s -u -X pycache_prefix= /results/lib/launch.py --run /results --umask 022 \
    --caches node --world 8 --local-sizes 4,4 --leave-together 60 -- \
  python3 -u main.py --model tiny --batch-size 2 --image-size 32 --precision fp32 --warmup-steps 5 --steps 30 \
    --demonstration --device cpu &
runner_wait $!; exit "$runner_exit"
