"""What an image, or an environment without a container, is made of."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

INPUTS_LABEL = "gpu-runner.inputs"  # of what a build made


def labels_taken_over(labels: Mapping[str, str] | None) -> dict[str, str]:
    """The labels that an image has from another one: not what says that a build made it, as any may carry that."""
    return {key: value for key, value in (labels or {}).items() if key != INPUTS_LABEL}


class Mpi(msgspec.Struct, frozen=True):
    """The image's MPI.

    Attributes:
        flavour: ``openmpi``, ``mpich``, ``other``; empty without one.
        pmi: what its programs take from ``srun --mpi``: ``pmi1``, ``pmi2``, ``pmix``.
        abi: the library that Horovod asks the loader for: ``libmpi.so.40`` (Open MPI), ``libmpi.so.12`` (MPICH ABI).
    """

    flavour: str = ""
    version: str = ""
    pmi: tuple[str, ...] = ()
    abi: str = ""


class Horovod(msgspec.Struct, frozen=True):
    """The image's Horovod.

    Attributes:
        wheel_key: of the wheel that was built for it; ``shipped`` where it is the base's own.
        fixes: patches that it was built with. proven: ways in which two processes reduced and trained as one.
        operations: by which it can reduce, as the library itself says: ``NCCL``, ``MPI``, ``Gloo``.
        nccl: version of the NCCL that it was compiled with; empty without one, or where that is unknown.
        cuda_architectures: of its own kernels, as numbers: 80 for ``sm_80``; empty where unknown, or without CUDA.
        ptx: the architecture that they are there for as PTX, too; 0 where there is none. nvcc: version of the compiler.
    """

    version: str = ""
    wheel_key: str = ""
    fixes: tuple[str, ...] = ()
    frameworks: tuple[str, ...] = ()
    controllers: tuple[str, ...] = ()
    operations: tuple[str, ...] = ()
    proven: tuple[str, ...] = ()
    nccl: str = ""
    cuda_architectures: tuple[int, ...] = ()
    ptx: int = 0
    nvcc: str = ""

    @property
    def has_nccl(self) -> bool:
        """Whether NCCL is among its operations."""
        return "nccl" in {operation.lower() for operation in self.operations}

    @property
    def has_mpi(self) -> bool:
        """Whether MPI is among its controllers, however that is spelt (Horovod's own word is ``MPI``)."""
        return "mpi" in {controller.lower() for controller in self.controllers}


class Package(msgspec.Struct, frozen=True):
    """A package that was added to a finished image.

    Attributes:
        sha256: of the file that pip installed; empty where pip does not say. requested: by name; else it came along.
    """

    name: str
    version: str
    sha256: str = ""
    requested: bool = False


class ImageFacts(msgspec.Struct, frozen=True):
    """Everything that an image built here records about itself; empty where it lacks a part.

    Attributes:
        keras: version of ``tf.keras``. arch: of the processor, ``x86_64``.
        cuda_archs: of the framework's kernels: ``sm_80``, ``compute_90``.
        driver_min: the least NVIDIA driver that runs programs of this CUDA line.
        driver_compat: of the driver's user half that the image carries for older hosts (NVIDIA's compat package).
        source: commit that it was built from. packages: what `build --requirement` added.
    """

    framework: str = ""
    framework_version: str = ""
    keras: str = ""
    python: str = ""
    arch: str = ""
    libc: str = ""
    cuda: str = ""
    cuda_archs: tuple[str, ...] = ()
    driver_min: str = ""
    driver_compat: str = ""
    nccl: str = ""
    mpi: Mpi = Mpi()
    horovod: Horovod = Horovod()
    base: str = ""
    base_digest: str = ""
    source: str = ""
    packages: tuple[Package, ...] = ()


def facts_of(about: Mapping[str, Any]) -> ImageFacts | None:
    """The facts out of a sidecar's ``about``; None where the image says nothing, or not in this form."""
    if not about:
        return None
    try:
        return msgspec.convert({key: value for key, value in about.items() if value is not None}, ImageFacts)
    except msgspec.ValidationError:
        return None


EnvironmentKind = Literal["virtualenv", "conda", "modules"]
FrameworkSource = Literal["pip", "modules"]
Framework = Literal["pytorch", "tensorflow"]


class Activate(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is activated: a conda environment, a virtual environment, or a virtual environment on top of conda's.

    Attributes:
        conda: name or directory of a conda environment.
        virtualenv: directory of a virtual environment.
    """

    conda: str = ""
    virtualenv: str = ""


class Setup(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a shell does before the program's Python is there, in this order.

    Attributes:
        purge: ``module purge`` first.
        use: directories of further modules, for ``module use``.
        modules: to be loaded, in their order.
        conda: directory of the conda installation that activates; empty where a module, or PATH, has ``conda``.
        activate: what is activated in the end.
    """

    purge: bool = False
    use: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()
    conda: str = ""
    activate: Activate = Activate()


class Environment(msgspec.Struct, frozen=True):
    """An environment that ``env create`` has made and tested (``environment.json``).

    Attributes:
        framework: empty where it is unknown: an environment that the user made.
        kind: what was made; for ``modules`` nothing was made, and the site's modules were tested.
        directory: absolute, of what was made; empty for ``modules``.
        inputs: hash of all that went into it.
        setup: what makes it ready in a job.
        env: variables that every program in it needs.
        about: what it contains, in the form that images use.
        mpi, nccl: as requested: ``auto``, ``none``, a flavour, a directory.
        made_s: Unix time.
        python: version, for comparing on each node; empty for one that is not compared.
    """

    name: str
    kind: EnvironmentKind
    framework: Framework | Literal[""]
    directory: str
    inputs: str
    setup: Setup
    about: ImageFacts
    env: dict[str, str] = {}
    mpi: str = "auto"
    nccl: str = "auto"
    made_s: float = 0.0
    python: str = ""
