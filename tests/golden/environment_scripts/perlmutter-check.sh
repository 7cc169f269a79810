#!/bin/bash
set -uo pipefail
unset -v PYTHONPATH PYTHONHOME PYTHONSTARTUP PYTHONPYCACHEPREFIX VIRTUAL_ENV LD_PRELOAD BASH_ENV PIP_USER PIP_TARGET PIP_PREFIX
export PYTHONNOUSERSITE='1'
export PYTHONDONTWRITEBYTECODE='1'
set +u   # what follows reads names that are not set
type module &>/dev/null || . /etc/profile   # without the user's own start-up files
module load PrgEnv-gnu cudatoolkit nccl python || exit 74
[ "$(type -t conda)" = function ] || eval "$(conda shell.bash hook)"
conda activate /scratch/e/elvis/gpu-runner/environments/horovod/made || exit 74
set -u
python3 /home/elvis/gpu-runner/containers/horovod/prove.py --framework pytorch --mpi mpich --nccl \
  auto --place environment || exit 78
