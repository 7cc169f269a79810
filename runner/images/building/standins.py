"""The stand-in bases that can be made with no registry, as data: what lies in each, and which trap it is there for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

# In the image's configuration, as NVIDIA's images have them. NVIDIA_VISIBLE_DEVICES is left out: Enroot's hook
# refuses to start an image that has it where nvidia-container-cli is absent.
_VARIABLES = {
    "CUDA_VERSION": "12.8.0.038",
    "NCCL_VERSION": "2.25.1",
    "OMPI_MCA_coll_hcoll_enable": "0",
    "PIP_CONSTRAINT": "/etc/pip/constraint.txt",
    "BASH_ENV": "/etc/bash.bashrc",
    "ENV": "/etc/shinit_v2",
    "SHELL": "/bin/bash",
    "PYTHONIOENCODING": "utf-8",
    "LC_ALL": "C.UTF-8",
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
}
# What containers/standin-cuda/requirements.txt brings: nvcc and CUDA's runtime of release 13.0.2.
_CUDA_13 = {
    "CUDA_VERSION": "13.0.2",
    "CUDA_HOME": "/usr/local/cuda",
    "NCCL_VERSION": "2.29.7",
    "PATH": f"/usr/local/cuda/bin:{_VARIABLES['PATH']}",
}
_COMPILERS = ("ca-certificates", "cmake", "g++", "make", "procps", "python3", "python3-dev", "python3-pip")
_OPEN_MPI = ("libopenmpi-dev", "openmpi-bin")
_DEBIANS_TORCH = ("libtorch-dev", "pybind11-dev", "python3-numpy", "python3-setuptools", "python3-torch")


@dataclass(frozen=True)
class StandIn:
    """A base made of a Debian release and a framework's build for CPUs, or for CUDA.

    Attributes:
        framework: ``pytorch`` or ``tensorflow``. name: what ``--base`` calls it.
        product: how the banner calls it. suite: Debian's release; python: its Python, ``3.11``.
        packages: of Debian. requirements: of the package index, as wheels; none where Debian packages the framework.
        pinned: what the constraint file names, as NVIDIA's images pin what they ship.
        variables: of the image's configuration.
        cuda: whether CUDA's toolkit, NCCL and a CUDA build of the framework lie in it; they are listed, with their
            hashes, in ``containers/standin-cuda/requirements.txt``, and ``requirements`` is empty.
    """

    framework: str
    name: str
    product: str
    packages: tuple[str, ...]
    requirements: tuple[str, ...]
    pinned: tuple[str, ...]
    suite: str = "bookworm"
    python: str = "3.11"
    variables: Mapping[str, str] = field(default_factory=dict)
    cuda: bool = False


def _variables(product: str, name: str, version: str) -> dict[str, str]:
    """``PYTORCH_VERSION`` and its relatives beside what every image of NVIDIA's sets."""
    return {
        f"{name}_VERSION": version,
        f"{name}_BUILD_VERSION": f"{version}+cpu",
        f"NVIDIA_{name}_VERSION": "standin",
        "NVIDIA_PRODUCT_NAME": f"{product} (stand-in)",
        **_VARIABLES,
    }


_TORCH = StandIn(
    framework="pytorch",
    name="standin",
    product="PyTorch",
    packages=tuple(sorted((*_COMPILERS, *_OPEN_MPI))),
    requirements=("torch==2.13.0", "numpy"),
    pinned=("torch", "numpy", "setuptools"),
    variables=_variables("PyTorch", "PYTORCH", "2.13.0"),
)
_TENSORFLOW = StandIn(
    framework="tensorflow",
    name="standin",
    product="TensorFlow",
    packages=_TORCH.packages,
    requirements=("tensorflow-cpu==2.21.0",),
    pinned=("tensorflow-cpu", "keras", "numpy", "setuptools"),
    variables=_variables("TensorFlow", "TENSORFLOW", "2.21.0"),
)
STAND_INS = (
    _TORCH,
    # No MPI, so Gloo only; and a CMake that refuses what Horovod's own files ask for.
    replace(
        _TORCH,
        name="standin-gloo",
        packages=_COMPILERS,
        requirements=(*_TORCH.requirements, "cmake>=4,<5"),
    ),
    # Debian 13 as it is: Python 3.13, GCC 14, CMake 3.31, and a torch built by Debian, not by PyTorch.
    replace(
        _TORCH,
        name="standin-trixie",
        suite="trixie",
        python="3.13",
        packages=tuple(sorted((*_TORCH.packages, *_DEBIANS_TORCH))),
        requirements=(),
        variables=_variables("PyTorch", "PYTORCH", "2.6.0"),
    ),
    # Horovod is compiled with CUDA and NCCL here, and nothing of it can run on a GPU: all other libraries are stubs.
    replace(
        _TORCH,
        name="standin-cuda",
        requirements=(),
        variables={**_TORCH.variables, "PYTORCH_BUILD_VERSION": "2.13.0+cu130", **_CUDA_13},
        cuda=True,
    ),
    _TENSORFLOW,
)


def find(framework: str, name: str) -> StandIn | None:
    """The stand-in of that name for a framework; None where there is none."""
    return next((each for each in STAND_INS if (each.framework, each.name) == (framework, name)), None)


def names(framework: str) -> tuple[str, ...]:
    """What ``--base`` may call a framework's stand-ins."""
    return tuple(each.name for each in STAND_INS if each.framework == framework)
