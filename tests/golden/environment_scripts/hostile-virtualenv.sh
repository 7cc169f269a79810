#!/bin/bash
set -uo pipefail
exec 9>>'/scratch/e/elvis/gpu-runner/environments/it'\''s $HOME `id` #;*/it'\''s $HOME `id` #;*/building' && flock 9 || exit 79
unset -v PYTHONPATH PYTHONHOME PYTHONSTARTUP PYTHONPYCACHEPREFIX VIRTUAL_ENV LD_PRELOAD BASH_ENV PIP_USER PIP_TARGET PIP_PREFIX
export PYTHONNOUSERSITE='1'
export PYTHONDONTWRITEBYTECODE='1'
export PIP_CACHE_DIR='/scratch/e/elvis/gpu-runner/environments/it'\''s $HOME `id` #;*/.caches/pip'
export CONDA_PKGS_DIRS='/scratch/e/elvis/gpu-runner/environments/it'\''s $HOME `id` #;*/.caches/conda'
set +u   # what follows reads names that are not set
type module &>/dev/null || . /etc/profile   # without the user's own start-up files
module use '/m/it'\''s $HOME `id` #;*' || exit 74
module load 'it'\''s $HOME `id` #;*' || exit 74
[ "$(type -t conda)" = function ] || eval "$(conda shell.bash hook)"
conda activate 'it'\''s $HOME `id` #;*' || exit 74
set -u
python3 -m venv \
  '/scratch/e/elvis/gpu-runner/environments/it'\''s $HOME `id` #;*/it'\''s $HOME `id` #;*/made' || exit 75
set +u   # what follows reads names that are not set
source \
  '/scratch/e/elvis/gpu-runner/environments/it'\''s $HOME `id` #;*/it'\''s $HOME `id` #;*/made/bin/activate' || exit 75
set -u
python3 -m pip install --disable-pip-version-check --progress-bar off -- \
  'torch @ file:///it'\''s $HOME `id` #;*' || exit 76
export TF_USE_LEGACY_KERAS='1'
python3 /home/elvis/gpu-runner/containers/horovod/build.py wheel --framework tensorflow --mpi none \
  --nccl '/n/it'\''s $HOME `id` #;*' --place environment --cuda-archs auto --horovod auto --out \
  '/scratch/e/elvis/gpu-runner/environments/it'\''s $HOME `id` #;*/it'\''s $HOME `id` #;*/work/wheel' \
  --shelf /home/elvis/.cache/gpu-runner/wheels || exit 77
python3 /home/elvis/gpu-runner/containers/horovod/install.py --framework tensorflow --wheel \
  '/scratch/e/elvis/gpu-runner/environments/it'\''s $HOME `id` #;*/it'\''s $HOME `id` #;*/work/wheel' \
  --place environment || exit 77
python3 /home/elvis/gpu-runner/containers/horovod/prove.py --framework tensorflow --mpi none --nccl \
  '/n/it'\''s $HOME `id` #;*' --place environment --write \
  '/scratch/e/elvis/gpu-runner/environments/it'\''s $HOME `id` #;*/it'\''s $HOME `id` #;*/work/proof.json' || exit 78
export BASE='virtualenv it'\''s $HOME `id` #;*'
python3 /home/elvis/gpu-runner/containers/horovod/describe.py --framework tensorflow --wheel \
  '/scratch/e/elvis/gpu-runner/environments/it'\''s $HOME `id` #;*/it'\''s $HOME `id` #;*/work/wheel' \
  --proof \
  '/scratch/e/elvis/gpu-runner/environments/it'\''s $HOME `id` #;*/it'\''s $HOME `id` #;*/work/proof.json' \
  --write \
  '/scratch/e/elvis/gpu-runner/environments/it'\''s $HOME `id` #;*/it'\''s $HOME `id` #;*/work/about.json' || exit 78
