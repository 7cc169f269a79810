"""The specification of an environment, from the site's native way and the command line. Pure."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from runner.model.backends import NATIVE
from runner.model.image import Activate, EnvironmentKind, Framework, FrameworkSource, Setup
from runner.model.site import RuntimeAtSite, Site

# The framework of each device, with what the proof and the recipes import besides; the versions that images are proven
# with (docs/proofs.md).
REQUIREMENTS: dict[tuple[Framework, str], tuple[str, ...]] = {
    ("pytorch", "cuda"): ("torch==2.13.0", "numpy>=1.26,<3"),
    ("pytorch", "cpu"): ("torch==2.13.0", "numpy>=1.26,<3"),
    ("tensorflow", "cuda"): ("tensorflow[and-cuda]==2.21.0",),
    ("tensorflow", "cpu"): ("tensorflow-cpu==2.21.0",),
}
CONDA_PYTHON = "3.11"  # of what conda makes: the one that images are proven with
# Of base images: NVIDIA's had 3.8, 3.10 and 3.12 so far.
IMAGE_PYTHONS = ("3.8", "3.9", "3.10", "3.11", "3.12", "3.13", "3.14")
# Keras 2, which Horovod's optimizer knows, as in our images.
VARIABLES: dict[Framework, dict[str, str]] = {"pytorch": {}, "tensorflow": {"TF_USE_LEGACY_KERAS": "1"}}


@dataclass(frozen=True)
class EnvironmentSpec:
    """The environment that is to be made.

    Attributes:
        setup: of the site: what it is built upon.
        requirements: of pip, for the framework; empty where the setup's modules bring it.
        mpi: ``auto``, ``none``, ``openmpi`` or ``mpich``. nccl: ``auto``, ``none``, or NCCL's directory.
        cuda_archs: for Horovod's kernels: ``80,90``, or ``auto`` for the framework's own.
        origin: where the framework comes from.
        channels: from which conda takes Python; empty for those of its own configuration.
        proxies: variables of the site by which its nodes reach the internet, name and value.
        packages: identity of the directory of packages that it is made from; empty where an index provides them.
    """

    name: str
    kind: EnvironmentKind
    framework: Framework
    setup: Setup
    requirements: tuple[str, ...]
    mpi: str = "auto"
    nccl: str = "auto"
    cuda_archs: str = "auto"
    origin: FrameworkSource = "pip"
    channels: tuple[str, ...] = ()
    proxies: tuple[tuple[str, str], ...] = ()
    packages: str = ""


@dataclass(frozen=True)
class PackagesSpec:
    """What is to be collected for machines without a network.

    Attributes:
        framework: that Horovod is for. device: of the site: ``cuda`` or ``cpu``.
        requirements: of pip, for the framework; empty where a base image or modules bring it.
        setup: of the site: what its Python comes with. python: the program.
        pythons: versions of images' Pythons; empty for the one that collects.
        machine: the images' processor; empty for this machine's.
        proxies: as in EnvironmentSpec.
    """

    framework: Framework
    device: str
    requirements: tuple[str, ...]
    setup: Setup
    python: str = "python3"
    pythons: tuple[str, ...] = ()
    machine: str = ""
    proxies: tuple[tuple[str, str], ...] = ()


def of_site(
    site: Site,
    name: str,
    *,
    kind: EnvironmentKind | None = None,
    framework: Framework = "pytorch",
    modules: tuple[str, ...] = (),
    requirements: tuple[str, ...] = (),
    mpi: str = "auto",
    nccl: str = "auto",
    cuda_archs: str | None = None,
    channels: tuple[str, ...] = (),
    conda: str = "",
) -> EnvironmentSpec:
    """What the site's native way makes of an environment; empty and None leave the choice to it.

    Args:
        modules: instead of the site's.
        requirements: of pip, instead of the pinned ones.
        conda: directory of a conda installation, for a site that names none of its own.
    """
    way = site.ways.get(NATIVE, RuntimeAtSite())
    made = kind or way.kind
    origin: FrameworkSource = "modules" if made == "modules" else way.framework
    pinned = () if origin == "modules" else REQUIREMENTS[framework, site.device]
    setup = msgspec.structs.replace(way.setup, modules=modules or way.setup.modules)
    if made == "conda":
        setup = msgspec.structs.replace(setup, conda=setup.conda or conda)
    return EnvironmentSpec(
        name=name,
        kind=made,
        framework=framework,
        setup=setup,
        requirements=requirements or pinned,
        mpi=mpi,
        nccl=nccl_for(site, nccl),
        cuda_archs=cuda_archs or site.hardware.compute_capability.replace(".", "") or "auto",
        origin=origin,
        channels=channels,
        proxies=proxies_of(site),
    )


def nccl_for(site: Site, requested: str) -> str:
    """NCCL of a Horovod that runs there: none on CPUs, though torch of the package index has CUDA all the same."""
    return "none" if requested == "auto" and site.device == "cpu" else requested


def packages_of_site(
    site: Site,
    *,
    kind: EnvironmentKind | None = None,
    framework: Framework = "pytorch",
    modules: tuple[str, ...] = (),
    requirements: tuple[str, ...] = (),
    python: str | None = None,
) -> PackagesSpec:
    """The packages of an environment as ``of_site`` makes it.

    Args:
        python: of an environment; it is called as it is, without the site's modules. None: what these provide.
    """
    wanted = of_site(site, "", kind=kind, framework=framework, modules=modules, requirements=requirements)
    return PackagesSpec(
        framework=framework,
        device=site.device,
        requirements=wanted.requirements,
        setup=wanted.setup if python is None else Setup(),
        python=python or (f"python{CONDA_PYTHON}" if wanted.kind == "conda" else "python3"),
        proxies=wanted.proxies,
    )


def packages_of_images(site: Site, framework: Framework, machine: str) -> PackagesSpec:
    """What Horovod needs in images of a framework, whatever their Python."""
    return PackagesSpec(
        framework, site.device, (), Setup(), pythons=IMAGE_PYTHONS, machine=machine, proxies=proxies_of(site)
    )


def proxies_of(site: Site) -> tuple[tuple[str, str], ...]:
    """The site's variables by which its nodes reach the internet."""
    return tuple((key, value) for key, value in sorted(site.env.items()) if value and is_proxy(key))


def is_proxy(name: str) -> bool:
    """Whether a variable says by which proxy programs reach the internet (curl(1), pip, conda)."""
    return name.lower().endswith("_proxy")


def setup_of_jobs(spec: EnvironmentSpec, directory: str) -> Setup:
    """What a job does before its ranks: the site's own, and the activation of what was made."""
    active = spec.setup.activate
    if spec.kind == "conda":
        return msgspec.structs.replace(spec.setup, activate=Activate(conda=directory))
    if spec.kind == "virtualenv":
        return msgspec.structs.replace(spec.setup, activate=Activate(conda=active.conda, virtualenv=directory))
    return spec.setup
