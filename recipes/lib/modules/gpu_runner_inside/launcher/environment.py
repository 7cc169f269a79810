"""What is recorded of a task's environment: all names, and the values that explain a run. Pure."""

from __future__ import annotations

import re
from typing import Mapping

RECORDED_PREFIXES = (
    "ACCELERATE_", "CUBLAS_", "CUDA_", "CUDNN_", "FI_", "GLOO_", "GPU_DEVICE_", "HOROVOD_", "KMP_", "MKL_", "MPICH_",
    "NCCL_", "NVIDIA_", "NVTE_", "OMP_", "OMPI_", "OPAL_", "OPENBLAS_", "PALS_", "PBS_", "PMIX_", "PMI_", "PYTORCH_",
    "RUNNER_", "SLURM", "TF_", "TORCHDYNAMO_", "TORCHINDUCTOR_", "TORCH_", "UCX_", "XLA_",
)  # fmt: skip
RECORDED_NAMES = frozenset(
    ("LANG", "LC_ALL", "LD_LIBRARY_PATH", "LD_PRELOAD", "MASTER_ADDR", "MASTER_PORT", "PATH", "PYTHONNOUSERSITE",
     "PYTHONPATH", "PYTHONUNBUFFERED", "PYXIS_VERSION", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE",
     "TMPDIR")
)  # fmt: skip
_SECRET_NAME = re.compile(
    r"pass|pwd|secret|token|key|cred|auth|private|cookie|session|jwt|cert|login|bearer", re.IGNORECASE
)
_WITH_TOKEN = ("HOROVOD_GLOO_RENDEZVOUS_ADDR", "RUNNER_RENDEZVOUS")  # ADDRESS[:PORT]/TOKEN
_USER_INFO = re.compile(r"(://)[^/\s]*@")  # a password may hold a raw "@"


def recorded(env: Mapping[str, str]) -> dict[str, str]:
    """The values that may be recorded: of known prefixes, of no name that may be a secret's, no user in a URL,
    no token of the rendezvous.
    """
    return {
        name: env[name].partition("/")[0] if name in _WITH_TOKEN else _USER_INFO.sub(r"\1***@", env[name])
        for name in sorted(env)
        if (name in RECORDED_NAMES or name.startswith(RECORDED_PREFIXES)) and not may_be_secret(name)
    }


def may_be_secret(name: str) -> bool:
    """Whether the value of a variable of this name may be a secret."""
    return _SECRET_NAME.search(name) is not None


def names(env: Mapping[str, str]) -> list[str]:
    """All names, sorted."""
    return sorted(env)
