#!/bin/bash
set -uo pipefail
exec 9>>/scratch/e/elvis/gpu-runner/environments/horovod/building && flock 9 || exit 79
unset -v PYTHONPATH PYTHONHOME PYTHONSTARTUP PYTHONPYCACHEPREFIX VIRTUAL_ENV LD_PRELOAD BASH_ENV PIP_USER PIP_TARGET PIP_PREFIX
export PYTHONNOUSERSITE='1'
export PYTHONDONTWRITEBYTECODE='1'
export PIP_CACHE_DIR='/scratch/e/elvis/gpu-runner/environments/.caches/pip'
export CONDA_PKGS_DIRS='/scratch/e/elvis/gpu-runner/environments/.caches/conda'
bash -c \
  '(umask 077 && : >>"$2.lock") && exec 8>>"$2.lock" && flock 8 || exit 1
begun=; [ -L "$2.installing" ] || [ ! -O "$2.installing" ] || begun=yes
if [ -x "$2/bin/conda" ] && [ ! "$begun" ]; then exit 0; fi
if [ -e "$2" ] && [ ! "$begun" ]; then echo "$2 is there, and is no conda" >&2; exit 1; fi
: >>"$2.installing" && rm -rf -- "$2" && bash "$1" -b -p "$2" && [ -e "$2/etc/profile.d/conda.sh" ] || exit 1
rm -f -- "$2.installing" || echo "$2 is installed; remove $2.installing, or it is installed anew" >&2
' \
  bash '/scratch/e/elvis/it'\''s $HOME `id` #;*.sh' /scratch/elvis/miniconda3 || exit 80
set +u   # what follows reads names that are not set
type module &>/dev/null || . /etc/profile   # without the user's own start-up files
module purge || exit 74
module load gcc/15.2.0 cuda/13.0.2 || exit 74
source /scratch/elvis/miniconda3/etc/profile.d/conda.sh || exit 74
set -u
set +u   # what follows reads names that are not set
[ "$(type -t conda)" = function ] || eval "$(conda shell.bash hook)"
conda create --yes --quiet --override-channels --channel=conda-forge --prefix \
  /scratch/e/elvis/gpu-runner/environments/horovod/made python=3.11 || exit 75
set -u
set +u   # what follows reads names that are not set
[ "$(type -t conda)" = function ] || eval "$(conda shell.bash hook)"
conda activate /scratch/e/elvis/gpu-runner/environments/horovod/made || exit 75
set -u
python3 -m pip install --disable-pip-version-check --progress-bar off -- torch==2.13.0 \
  'numpy>=1.26,<3' || exit 76
python3 /home/elvis/gpu-runner/containers/horovod/build.py wheel --framework pytorch --mpi auto \
  --nccl auto --place environment --cuda-archs 80 --horovod auto --out \
  /scratch/e/elvis/gpu-runner/environments/horovod/work/wheel --shelf \
  /home/elvis/.cache/gpu-runner/wheels || exit 77
python3 /home/elvis/gpu-runner/containers/horovod/install.py --framework pytorch --wheel \
  /scratch/e/elvis/gpu-runner/environments/horovod/work/wheel --place environment || exit 77
python3 /home/elvis/gpu-runner/containers/horovod/prove.py --framework pytorch --mpi auto --nccl \
  auto --place environment --write /scratch/e/elvis/gpu-runner/environments/horovod/work/proof.json || exit 78
export BASE='conda gcc/15.2.0 cuda/13.0.2'
python3 /home/elvis/gpu-runner/containers/horovod/describe.py --framework pytorch --wheel \
  /scratch/e/elvis/gpu-runner/environments/horovod/work/wheel --proof \
  /scratch/e/elvis/gpu-runner/environments/horovod/work/proof.json --write \
  /scratch/e/elvis/gpu-runner/environments/horovod/work/about.json || exit 78
