#!/bin/sh
# Stage of the image, on nvcr.io/nvidia/tensorflow:25.02-tf2-py3
set -eu
printf '%s\n' 'Step 1/12 : RUN mkdir -p /results'
/bin/sh -c 'mkdir -p /results'
printf '%s\n' 'Step 2/12 : ARG LEGACY_KERAS=0'
export LEGACY_KERAS=0
printf '%s\n' 'Step 3/12 : ENV TF_USE_LEGACY_KERAS=0'
export TF_USE_LEGACY_KERAS=0
printf '%s\n' 'Step 4/12 : COPY containers/horovod/*.py containers/horovod/*.txt /opt/runner/'
mkdir -p /opt/runner
cp -R /mnt/gpu-runner/context/containers/horovod/*.py /opt/runner/
cp -R /mnt/gpu-runner/context/containers/horovod/*.txt /opt/runner/
printf '%s\n' 'Step 5/12 : COPY --from=wheel /opt/wheel/ /opt/runner/wheel/'
mkdir -p /opt/runner/wheel
cp -R /mnt/gpu-runner/stages/wheel/opt/wheel/. /opt/runner/wheel/
printf '%s\n' 'Step 6/12 : RUN python3 /opt/runner/install.py --framework tensorflow'
/bin/sh -c 'python3 /opt/runner/install.py --framework tensorflow'
printf '%s\n' 'Step 7/12 : RUN python3 /opt/runner/prove.py --framework tensorflow --write /opt/runner/proof.json'
/bin/sh -c 'python3 /opt/runner/prove.py --framework tensorflow --write /opt/runner/proof.json'
printf '%s\n' 'Step 8/12 : COPY recipes /opt/recipes/'
mkdir -p /opt/recipes
cp -R /mnt/gpu-runner/context/recipes/. /opt/recipes/
printf '%s\n' 'Step 9/12 : ARG BASE=nvcr.io/nvidia/tensorflow:25.02-tf2-py3'
export BASE=nvcr.io/nvidia/tensorflow:25.02-tf2-py3
printf '%s\n' 'Step 10/12 : ARG BASE_DIGEST=sha256:1f0ce1d2a3b4c5d6e7f8091a2b3c4d5e6f708192a3b4c5d6e7f8091a2b3c4d5e6'
export BASE_DIGEST=sha256:1f0ce1d2a3b4c5d6e7f8091a2b3c4d5e6f708192a3b4c5d6e7f8091a2b3c4d5e6
printf '%s\n' 'Step 11/12 : ARG SOURCE=0123abc'
export SOURCE=0123abc
printf '%s\n' 'Step 12/12 : RUN python3 /opt/runner/describe.py --framework tensorflow --proof /opt/runner/proof.json --write /opt/runner/image.json'
/bin/sh -c 'python3 /opt/runner/describe.py --framework tensorflow --proof /opt/runner/proof.json --write /opt/runner/image.json'
