#!/bin/bash
# The same, with the number of processes of a node in a variable.
set -euo pipefail
GPUS=2
torchrun --nproc-per-node "$GPUS" train.py torch
