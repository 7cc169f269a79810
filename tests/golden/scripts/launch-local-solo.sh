#!/bin/bash
set -uo pipefail; umask 077
cd -- "$(dirname -- "${BASH_SOURCE[0]}")" || exit 72
runner_run=$(pwd -P)

sha256sum --check --quiet >&2 <<'END' || exit 74
SHA-256  lib/common.sh
SHA-256  lib/supervise.sh
SHA-256  lib/rank.sh
SHA-256  lib/launch.py
END
. lib/common.sh && . lib/supervise.sh || exit 74

unset -v "${!SLURM@}" "${!PMI@}" "${!PALS_@}" "${!OMPI_COMM_WORLD_@}" "${!HOROVOD_GLOO_RENDEZVOUS_@}" "${!RUNNER_@}"
runner_end_at_signals
runner_be_job
runner_meet 127.0.0.1 $$

export MKL_NUM_THREADS='1'
export OMP_NUM_THREADS='1'
export PYTHONNOUSERSITE='1'
export PYTHONUNBUFFERED='1'

runner_rank() {
  exec /bin/bash "$runner_run"/lib/rank.sh --cd "$runner_run"/recipe python3 -s -u -X pycache_prefix= \
    "$runner_run"/lib/launch.py --run "$runner_run" --umask 022 --caches home --world 1 --local-sizes 1 --bind \
    gpu-share --first-gpu 1 -- \
    python3 -u main.py --model tiny --batch-size 2 --image-size 32 --precision fp32 --warmup-steps 5 --steps 30 \
      --demonstration --device cpu
}
runner_start_ranks 0 1 1
runner_supervise 86400 60
runner_exit_as_supervised
