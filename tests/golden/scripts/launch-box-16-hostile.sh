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

runner_unset_login
runner_unset_shape
runner_unlock_memory quiet

runner_be_job
runner_find_nodes 2 < <(printf '%s\n' "${@:2}")
runner_nodelist=$(IFS=,; printf %s "${*:2}")
runner_cpus=$(( ${1:-0} / 8 ))
[ "$runner_cpus" -lt 2 ] || runner_cpus=$(( runner_cpus / 2 * 2 ))
runner_meet "${runner_hosts[0]}" "$SLURM_JOB_ID"

export RUNNER_ENV_LINES_='one
two	*'
export RUNNER_ENV_MKL_NUM_THREADS='1'
export RUNNER_ENV_NOTE='it'\''s "quoted" $HOME `id` \ # % é'
export RUNNER_ENV_OMP_NUM_THREADS='1'
export RUNNER_ENV_PYTHONNOUSERSITE='1'
export RUNNER_ENV_PYTHONUNBUFFERED='1'
export RUNNER_ENV_RUNNER_RDV_HOST="$RUNNER_RDV_HOST"
export RUNNER_ENV_RUNNER_RDV_PORT="$RUNNER_RDV_PORT"
export RUNNER_ENV_RUNNER_RDV_KEY="$RUNNER_RDV_KEY"
runner_record_versions slurm 'srun --version' charliecloud 'ch-run --version'

srun --mpi=none --exact --nodelist="$runner_nodelist" --nodes=2 --ntasks=2 --ntasks-per-node=1 --kill-on-bad-exit=1 \
  --output=logs/node-%N.log \
  /bin/bash "$runner_run"/lib/charliecloud.sh directories /var/tmp/"$USER".ch && ! runner_is_lost || exit 71

runner_step=''
trap 'runner_why=CANCELLED; kill -TERM "$runner_step" 2>/dev/null' TERM
srun --mpi=none --nodes=2 --ntasks=16 --exact --nodelist="$runner_nodelist" --ntasks-per-node=8 --gpus-per-node=8 \
  --mem=0 --time=00:20:00 --cpus-per-task="$runner_cpus" --cpu-bind=none --kill-on-bad-exit=1 --wait=0 \
  --output=logs/rank-%t.out --error=logs/rank-%t.err \
  /bin/bash "$runner_run"/lib/charliecloud.sh run ch-run --join-ct=8 --set-env --cd /results/recipe --bind \
    "$runner_run":/results --bind '/data/My Sets/$HOME:/data set' /lustre/u/images/sha256-1f0ce1d2a3b4.sqsh -- \
  /bin/bash /results/lib/rank.sh python3 -s -u -X pycache_prefix= /results/lib/launch.py --run /results --umask 022 \
    --caches node --world 16 --local-sizes 8,8 --bind gpu-share --leave-together 60 -- \
  python3 -u main.py --model tiny --batch-size 2 --image-size 32 --precision fp32 --warmup-steps 5 --steps 'a b'\''c' \
    --demonstration --device cpu --seed=-1 --note '$(touch /tmp/x); '\''q'\'' "d"' '' -n '*' &
runner_wait $!; exit "$runner_exit"
