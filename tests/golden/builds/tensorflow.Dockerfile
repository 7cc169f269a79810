FROM nvcr.io/nvidia/tensorflow:25.02-tf2-py3 AS wheel
ARG CXX_STANDARD=auto
ARG CUDA_ARCHS=auto
ARG NCCL=auto
ARG HOROVOD=auto
ARG LEGACY_KERAS=0
ENV TF_USE_LEGACY_KERAS=0
COPY containers/horovod /opt/runner/
RUN python3 /opt/runner/build.py wheel --framework tensorflow --out /opt/wheel     --cxx-standard "${CXX_STANDARD}" --cuda-archs "${CUDA_ARCHS}" --nccl "${NCCL}" --horovod "${HOROVOD}"

FROM nvcr.io/nvidia/tensorflow:25.02-tf2-py3
RUN mkdir -p /results
ARG LEGACY_KERAS=0
ENV TF_USE_LEGACY_KERAS=0
COPY containers/horovod/*.py containers/horovod/*.txt /opt/runner/
COPY --from=wheel /opt/wheel/ /opt/runner/wheel/
RUN python3 /opt/runner/install.py --framework tensorflow
ARG NCCL=auto
RUN python3 /opt/runner/prove.py --framework tensorflow --nccl "${NCCL}" --write /opt/runner/proof.json
COPY recipes /opt/recipes/
ARG BASE=nvcr.io/nvidia/tensorflow:25.02-tf2-py3
ARG BASE_DIGEST=sha256:1f0ce1d2a3b4c5d6e7f8091a2b3c4d5e6f708192a3b4c5d6e7f8091a2b3c4d5e6
ARG SOURCE=0123abc
RUN python3 /opt/runner/describe.py --framework tensorflow --proof /opt/runner/proof.json --write /opt/runner/image.json
