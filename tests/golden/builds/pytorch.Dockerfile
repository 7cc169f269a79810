FROM nvcr.io/nvidia/pytorch:25.02-py3 AS wheel
ARG CXX_STANDARD=auto
ARG CUDA_ARCHS=auto
ARG NCCL=auto
ARG HOROVOD=auto
COPY containers/horovod /opt/runner/
RUN python3 /opt/runner/build.py wheel --framework pytorch --out /opt/wheel     --cxx-standard "${CXX_STANDARD}" --cuda-archs "${CUDA_ARCHS}" --nccl "${NCCL}" --horovod "${HOROVOD}"

FROM nvcr.io/nvidia/pytorch:25.02-py3
RUN mkdir -p /results
COPY containers/horovod/*.py containers/horovod/*.txt /opt/runner/
COPY --from=wheel /opt/wheel/ /opt/runner/wheel/
RUN python3 /opt/runner/install.py --framework pytorch
ARG NCCL=auto
RUN python3 /opt/runner/prove.py --framework pytorch --nccl "${NCCL}" --write /opt/runner/proof.json
COPY recipes /opt/recipes/
ARG BASE=nvcr.io/nvidia/pytorch:25.02-py3
ARG BASE_DIGEST=sha256:1f0ce1d2a3b4c5d6e7f8091a2b3c4d5e6f708192a3b4c5d6e7f8091a2b3c4d5e6
ARG SOURCE=0123abc
RUN python3 /opt/runner/describe.py --framework pytorch --proof /opt/runner/proof.json --write /opt/runner/image.json
