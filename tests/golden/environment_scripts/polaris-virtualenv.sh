#!/bin/bash
set -uo pipefail
exec 9>>/scratch/e/elvis/gpu-runner/environments/horovod/building && flock 9 || exit 79
unset -v PYTHONPATH PYTHONHOME PYTHONSTARTUP PYTHONPYCACHEPREFIX VIRTUAL_ENV LD_PRELOAD BASH_ENV PIP_USER PIP_TARGET PIP_PREFIX
export PYTHONNOUSERSITE='1'
export PYTHONDONTWRITEBYTECODE='1'
export PIP_CACHE_DIR='/scratch/e/elvis/gpu-runner/environments/.caches/pip'
export CONDA_PKGS_DIRS='/scratch/e/elvis/gpu-runner/environments/.caches/conda'
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
python3 -m venv --system-site-packages /scratch/e/elvis/gpu-runner/environments/horovod/made || exit 75
set +u   # what follows reads names that are not set
source /scratch/e/elvis/gpu-runner/environments/horovod/made/bin/activate || exit 75
set -u
python3 /home/elvis/gpu-runner/containers/horovod/build.py wheel --framework pytorch --mpi auto \
  --nccl auto --place environment --cuda-archs 80 --horovod auto --out \
  /scratch/e/elvis/gpu-runner/environments/horovod/work/wheel --shelf \
  /home/elvis/.cache/gpu-runner/wheels || exit 77
python3 /home/elvis/gpu-runner/containers/horovod/install.py --framework pytorch --wheel \
  /scratch/e/elvis/gpu-runner/environments/horovod/work/wheel --place environment || exit 77
python3 /home/elvis/gpu-runner/containers/horovod/prove.py --framework pytorch --mpi auto --nccl \
  auto --place environment --write /scratch/e/elvis/gpu-runner/environments/horovod/work/proof.json || exit 78
export BASE='virtualenv conda'
python3 /home/elvis/gpu-runner/containers/horovod/describe.py --framework pytorch --wheel \
  /scratch/e/elvis/gpu-runner/environments/horovod/work/wheel --proof \
  /scratch/e/elvis/gpu-runner/environments/horovod/work/proof.json --write \
  /scratch/e/elvis/gpu-runner/environments/horovod/work/about.json || exit 78
