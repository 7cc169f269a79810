#!/bin/bash
set -uo pipefail
exec 9>>'/scratch/e/elvis/gpu-runner/environments/it'\''s $HOME `id` #;*/lock' && flock 9 || exit 79
unset -v PYTHONPATH PYTHONHOME PYTHONSTARTUP PYTHONPYCACHEPREFIX VIRTUAL_ENV LD_PRELOAD BASH_ENV PIP_USER PIP_TARGET PIP_PREFIX
export PYTHONNOUSERSITE='1'
export PYTHONDONTWRITEBYTECODE='1'
export PIP_CACHE_DIR='/scratch/e/elvis/gpu-runner/environments/it'\''s $HOME `id` #;*/cache'
export HTTPS_PROXY='http://proxy.alcf.anl.gov:3128'
export HTTP_PROXY='http://proxy.alcf.anl.gov:3128'
export ftp_proxy='http://proxy.alcf.anl.gov:3128'
export http_proxy='http://proxy.alcf.anl.gov:3128'
export https_proxy='http://proxy.alcf.anl.gov:3128'
export no_proxy='localhost,127.0.0.1,.alcf.anl.gov'
set +u   # what follows reads names that are not set
type module &>/dev/null || . /etc/profile   # without the user's own start-up files
module use /soft/modulefiles || exit 74
module load conda || exit 74
[ "$(type -t conda)" = function ] || eval "$(conda shell.bash hook)"
conda activate base || exit 74
set -u
python3 -m venv '/scratch/e/elvis/gpu-runner/environments/it'\''s $HOME `id` #;*/venv' || exit 75
'/scratch/e/elvis/gpu-runner/environments/it'\''s $HOME `id` #;*/venv/bin/python3' \
  /home/elvis/gpu-runner/containers/horovod/collect.py --framework pytorch --into \
  '/scratch/e/elvis/gpu-runner/environments/it'\''s $HOME `id` #;*/horovod' --write \
  '/scratch/e/elvis/gpu-runner/environments/it'\''s $HOME `id` #;*/about.json' || exit 77
