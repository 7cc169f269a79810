#!/bin/bash
# A training script as many have one: what starts the ranks stands in it.
set -euo pipefail
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
ARGS=(torch)
torchrun train.py "${ARGS[@]}"
