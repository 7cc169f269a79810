#!/bin/bash
set -uo pipefail; umask 077
cd -- "$(dirname -- "${BASH_SOURCE[0]}")" || exit 72
runner_run=$(pwd -P)

sha256sum --check --quiet >&2 <<'END' || exit 74
SHA-256  lib/common.sh
SHA-256  lib/supervise.sh
SHA-256  lib/charliecloud.sh
SHA-256  lib/leftovers.sh
SHA-256  lib/rank.sh
SHA-256  lib/launch.py
END
. lib/common.sh && . lib/supervise.sh || exit 74

runner_keep_only
runner_end_at_signals
runner_be_job
runner_meet 127.0.0.1 $$

export RUNNER_ENV_MKL_NUM_THREADS='1'
export RUNNER_ENV_OMP_NUM_THREADS='1'
export RUNNER_ENV_PYTHONNOUSERSITE='1'
export RUNNER_ENV_PYTHONUNBUFFERED='1'
export RUNNER_ENV_RUNNER_RDV_HOST="$RUNNER_RDV_HOST"
export RUNNER_ENV_RUNNER_RDV_PORT="$RUNNER_RDV_PORT"
export RUNNER_ENV_RUNNER_RDV_KEY="$RUNNER_RDV_KEY"
runner_record_versions charliecloud 'ch-run --version'

/bin/bash "$runner_run"/lib/charliecloud.sh directories /var/tmp/"$USER".ch >"logs/node-$(hostname).log" 2>&1 || exit 71

runner_rank() {
  exec /bin/bash "$runner_run"/lib/charliecloud.sh run ch-run --join-ct=2 --set-env --cd /results/recipe --bind \
    "$runner_run":/results /lustre/u/images/sha256-1f0ce1d2a3b4.sqsh -- \
    /bin/bash /results/lib/rank.sh python3 -s -u -X pycache_prefix= /results/lib/launch.py --run /results --umask 022 \
      --caches node --world 2 --local-sizes 2 --leave-together 60 -- \
    python3 -u main.py --model tiny --batch-size 2 --image-size 32 --precision fp32 --warmup-steps 5 --steps 30 \
      --demonstration --device cpu
}
runner_start_ranks 0 2 2
runner_supervise 86400 60
runner_exit_as_supervised
