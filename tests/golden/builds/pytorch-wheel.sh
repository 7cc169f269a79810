#!/bin/sh
# Stage wheel, on nvcr.io/nvidia/pytorch:25.02-py3
set -eu
printf '%s\n' 'Step 1/6 : ARG CXX_STANDARD=auto'
export CXX_STANDARD=auto
printf '%s\n' 'Step 2/6 : ARG CUDA_ARCHS=auto'
export CUDA_ARCHS=auto
printf '%s\n' 'Step 3/6 : ARG NCCL=auto'
export NCCL=auto
printf '%s\n' 'Step 4/6 : ARG HOROVOD=auto'
export HOROVOD=auto
printf '%s\n' 'Step 5/6 : COPY containers/horovod /opt/runner/'
mkdir -p /opt/runner
cp -R /.gpu-runner-build/context/containers/horovod/. /opt/runner/
printf '%s\n' 'Step 6/6 : RUN python3 /opt/runner/build.py wheel --framework pytorch --out /opt/wheel     --cxx-standard "${CXX_STANDARD}" --cuda-archs "${CUDA_ARCHS}" --nccl "${NCCL}" --horovod "${HOROVOD}"'
/bin/sh -c 'python3 /opt/runner/build.py wheel --framework pytorch --out /opt/wheel     --cxx-standard "${CXX_STANDARD}" --cuda-archs "${CUDA_ARCHS}" --nccl "${NCCL}" --horovod "${HOROVOD}"'
