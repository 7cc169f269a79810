#!/bin/bash
set -uo pipefail
exec 9>>'/scratch/e/elvis/gpu-runner/environments/it'\''s $HOME `id` #;*/it'\''s $HOME `id` #;*/building' && flock 9 || exit 79
unset -v PYTHONPATH PYTHONHOME PYTHONSTARTUP PYTHONPYCACHEPREFIX VIRTUAL_ENV LD_PRELOAD BASH_ENV PIP_USER PIP_TARGET PIP_PREFIX
export PYTHONNOUSERSITE='1'
export PYTHONDONTWRITEBYTECODE='1'
export PIP_CACHE_DIR='/scratch/e/elvis/gpu-runner/environments/it'\''s $HOME `id` #;*/.caches/pip'
export CONDA_PKGS_DIRS='/scratch/e/elvis/gpu-runner/environments/it'\''s $HOME `id` #;*/.caches/conda'
python3 -m venv \
  '/scratch/e/elvis/gpu-runner/environments/it'\''s $HOME `id` #;*/it'\''s $HOME `id` #;*/made' || exit 75
set +u   # what follows reads names that are not set
source \
  '/scratch/e/elvis/gpu-runner/environments/it'\''s $HOME `id` #;*/it'\''s $HOME `id` #;*/made/bin/activate' || exit 75
set -u
python3 /home/elvis/gpu-runner/containers/horovod/fits.py \
  '/scratch/e/elvis/gpu-runner/environments/it'\''s $HOME `id` #;*/wheéls' || exit 81
unset -v PIP_CONSTRAINT PIP_NO_BINARY
export PIP_CONFIG_FILE='/dev/null'
export PIP_NO_INDEX='1'
export PIP_FIND_LINKS='file:///scratch/e/elvis/gpu-runner/environments/it%27s%20%24HOME%20%60id%60%20%23%3B%2A/whe%C3%A9ls/framework file:///scratch/e/elvis/gpu-runner/environments/it%27s%20%24HOME%20%60id%60%20%23%3B%2A/whe%C3%A9ls/horovod'
python3 -m pip install --disable-pip-version-check --progress-bar off --no-deps --require-hashes -r \
  '/scratch/e/elvis/gpu-runner/environments/it'\''s $HOME `id` #;*/wheéls/framework.txt' || exit 76
python3 /home/elvis/gpu-runner/containers/horovod/build.py wheel --framework pytorch --mpi auto \
  --nccl auto --place environment --cuda-archs auto --horovod auto --out \
  '/scratch/e/elvis/gpu-runner/environments/it'\''s $HOME `id` #;*/it'\''s $HOME `id` #;*/work/wheel' \
  --shelf /home/elvis/.cache/gpu-runner/wheels || exit 77
python3 /home/elvis/gpu-runner/containers/horovod/install.py --framework pytorch --wheel \
  '/scratch/e/elvis/gpu-runner/environments/it'\''s $HOME `id` #;*/it'\''s $HOME `id` #;*/work/wheel' \
  --place environment || exit 77
python3 /home/elvis/gpu-runner/containers/horovod/prove.py --framework pytorch --mpi auto --nccl \
  auto --place environment --write \
  '/scratch/e/elvis/gpu-runner/environments/it'\''s $HOME `id` #;*/it'\''s $HOME `id` #;*/work/proof.json' || exit 78
export BASE='virtualenv'
python3 /home/elvis/gpu-runner/containers/horovod/describe.py --framework pytorch --wheel \
  '/scratch/e/elvis/gpu-runner/environments/it'\''s $HOME `id` #;*/it'\''s $HOME `id` #;*/work/wheel' \
  --proof \
  '/scratch/e/elvis/gpu-runner/environments/it'\''s $HOME `id` #;*/it'\''s $HOME `id` #;*/work/proof.json' \
  --write \
  '/scratch/e/elvis/gpu-runner/environments/it'\''s $HOME `id` #;*/it'\''s $HOME `id` #;*/work/about.json' || exit 78
