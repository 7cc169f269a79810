#!/bin/sh
# Stage of the image, on nvcr.io/nvidia/tensorflow:25.02-tf2-py3
set -eu
printf '%s\n' 'Step 1/13 : RUN mkdir -p /results'
/bin/sh -c 'mkdir -p /results'
printf '%s\n' 'Step 2/13 : ARG LEGACY_KERAS=0'
export LEGACY_KERAS=0
printf '%s\n' 'Step 3/13 : ENV TF_USE_LEGACY_KERAS=0'
export TF_USE_LEGACY_KERAS=0
printf '%s\n' 'Step 4/13 : COPY containers/horovod/*.py containers/horovod/*.txt /opt/runner/'
mkdir -p /opt/runner
cp -R /.gpu-runner-build/context/containers/horovod/*.py /opt/runner/
cp -R /.gpu-runner-build/context/containers/horovod/*.txt /opt/runner/
printf '%s\n' 'Step 5/13 : COPY --from=wheel /opt/wheel/ /opt/runner/wheel/'
mkdir -p /opt/runner/wheel
cp -R /.gpu-runner-build/stages/wheel/opt/wheel/. /opt/runner/wheel/
printf '%s\n' 'Step 6/13 : RUN python3 /opt/runner/install.py --framework tensorflow'
/bin/sh -c 'python3 /opt/runner/install.py --framework tensorflow'
printf '%s\n' 'Step 7/13 : ARG NCCL=auto'
export NCCL=auto
printf '%s\n' 'Step 8/13 : RUN python3 /opt/runner/prove.py --framework tensorflow --nccl "${NCCL}" --write /opt/runner/proof.json'
/bin/sh -c 'python3 /opt/runner/prove.py --framework tensorflow --nccl "${NCCL}" --write /opt/runner/proof.json'
printf '%s\n' 'Step 9/13 : COPY recipes /opt/recipes/'
mkdir -p /opt/recipes
cp -R /.gpu-runner-build/context/recipes/. /opt/recipes/
printf '%s\n' 'Step 10/13 : ARG BASE=nvcr.io/nvidia/tensorflow:25.02-tf2-py3'
export BASE=nvcr.io/nvidia/tensorflow:25.02-tf2-py3
printf '%s\n' 'Step 11/13 : ARG BASE_DIGEST=sha256:1f0ce1d2a3b4c5d6e7f8091a2b3c4d5e6f708192a3b4c5d6e7f8091a2b3c4d5e6'
export BASE_DIGEST=sha256:1f0ce1d2a3b4c5d6e7f8091a2b3c4d5e6f708192a3b4c5d6e7f8091a2b3c4d5e6
printf '%s\n' 'Step 12/13 : ARG SOURCE=0123abc'
export SOURCE=0123abc
printf '%s\n' 'Step 13/13 : RUN python3 /opt/runner/describe.py --framework tensorflow --proof /opt/runner/proof.json --write /opt/runner/image.json'
/bin/sh -c 'python3 /opt/runner/describe.py --framework tensorflow --proof /opt/runner/proof.json --write /opt/runner/image.json'
