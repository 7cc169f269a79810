#!/bin/bash
set -uo pipefail
exec 9>>/scratch/e/elvis/gpu-runner/environments/packages/lock && flock 9 || exit 79
unset -v PYTHONPATH PYTHONHOME PYTHONSTARTUP PYTHONPYCACHEPREFIX VIRTUAL_ENV LD_PRELOAD BASH_ENV PIP_USER PIP_TARGET PIP_PREFIX
export PYTHONNOUSERSITE='1'
export PYTHONDONTWRITEBYTECODE='1'
export PIP_CACHE_DIR='/scratch/e/elvis/gpu-runner/environments/packages/cache'
export HTTPS_PROXY='http://proxy.alcf.anl.gov:3128'
export HTTP_PROXY='http://proxy.alcf.anl.gov:3128'
export ftp_proxy='http://proxy.alcf.anl.gov:3128'
export http_proxy='http://proxy.alcf.anl.gov:3128'
export https_proxy='http://proxy.alcf.anl.gov:3128'
export no_proxy='localhost,127.0.0.1,.alcf.anl.gov'
python3 -m venv /scratch/e/elvis/gpu-runner/environments/packages/venv || exit 75
/scratch/e/elvis/gpu-runner/environments/packages/venv/bin/python3 \
  /home/elvis/gpu-runner/containers/horovod/collect.py --framework tensorflow --into \
  /scratch/e/elvis/gpu-runner/environments/packages/horovod --write \
  /scratch/e/elvis/gpu-runner/environments/packages/about.json --pythons \
  3.8,3.9,3.10,3.11,3.12,3.13,3.14 --machine aarch64 || exit 77
