#!/bin/bash
set -uo pipefail
exec 9>>/scratch/e/elvis/gpu-runner/environments/horovod/building && flock 9 || exit 79
unset -v PYTHONPATH PYTHONHOME PYTHONSTARTUP PYTHONPYCACHEPREFIX VIRTUAL_ENV LD_PRELOAD BASH_ENV PIP_USER PIP_TARGET PIP_PREFIX
export PYTHONNOUSERSITE='1'
export PYTHONDONTWRITEBYTECODE='1'
export PIP_CACHE_DIR='/scratch/e/elvis/gpu-runner/environments/.caches/pip'
export CONDA_PKGS_DIRS='/scratch/e/elvis/gpu-runner/environments/.caches/conda'
python3 -m venv /scratch/e/elvis/gpu-runner/environments/horovod/made || exit 75
set +u   # what follows reads names that are not set
source /scratch/e/elvis/gpu-runner/environments/horovod/made/bin/activate || exit 75
set -u
python3 -m pip install --disable-pip-version-check --progress-bar off -- torch==2.13.0 \
  'numpy>=1.26,<3' || exit 76
python3 /home/elvis/gpu-runner/containers/horovod/build.py wheel --framework pytorch --mpi auto \
  --nccl auto --place environment --cuda-archs auto --horovod auto --out \
  /scratch/e/elvis/gpu-runner/environments/horovod/work/wheel --shelf \
  /home/elvis/.cache/gpu-runner/wheels || exit 77
python3 /home/elvis/gpu-runner/containers/horovod/install.py --framework pytorch --wheel \
  /scratch/e/elvis/gpu-runner/environments/horovod/work/wheel --place environment || exit 77
python3 /home/elvis/gpu-runner/containers/horovod/prove.py --framework pytorch --mpi auto --nccl \
  auto --place environment --write /scratch/e/elvis/gpu-runner/environments/horovod/work/proof.json || exit 78
export BASE='virtualenv'
python3 /home/elvis/gpu-runner/containers/horovod/describe.py --framework pytorch --wheel \
  /scratch/e/elvis/gpu-runner/environments/horovod/work/wheel --proof \
  /scratch/e/elvis/gpu-runner/environments/horovod/work/proof.json --write \
  /scratch/e/elvis/gpu-runner/environments/horovod/work/about.json || exit 78
