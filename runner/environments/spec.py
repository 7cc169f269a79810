"""The specification of an environment, from the site's native way and the command line. Pure."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from runner.model.environment import Activate, Framework, FrameworkSource, Kind, Setup
from runner.model.runtimes import NATIVE
from runner.model.site import RuntimeAtSite, Site

# The framework of each device, with what the proof and the recipes import besides; the versions that images are proven
# with (docs/proofs.md).
REQUIREMENTS: dict[tuple[Framework, str], tuple[str, ...]] = {
    ("pytorch", "cuda"): ("torch==2.13.0", "numpy>=1.26,<3"),
    ("pytorch", "cpu"): ("torch==2.13.0", "numpy>=1.26,<3"),
    ("tensorflow", "cuda"): ("tensorflow[and-cuda]==2.21.0",),
    ("tensorflow", "cpu"): ("tensorflow-cpu==2.21.0",),
}
# Keras 2, which Horovod's optimizer knows, as in our images.
VARIABLES: dict[Framework, dict[str, str]] = {"pytorch": {}, "tensorflow": {"TF_USE_LEGACY_KERAS": "1"}}


@dataclass(frozen=True)
class EnvironmentSpec:
    """The environment that is to be made.

    Attributes:
        setup: of the site: what it is built upon.
        requirements: of pip, for the framework; empty where the setup's modules bring it.
        mpi: ``auto``, ``none``, ``openmpi`` or ``mpich``. nccl: ``auto``, ``none``, or NCCL's directory.
        cuda_archs: for Horovod's kernels: ``80,90``.
        origin: where the framework comes from.
        channels: from which conda takes Python; empty for those of its own configuration.
        proxies: variables of the site by which its nodes reach the internet, name and value.
    """

    name: str
    kind: Kind
    framework: Framework
    setup: Setup
    requirements: tuple[str, ...]
    mpi: str = "auto"
    nccl: str = "auto"
    cuda_archs: str = "80,90"
    origin: FrameworkSource = "pip"
    channels: tuple[str, ...] = ()
    proxies: tuple[tuple[str, str], ...] = ()


def of_site(
    site: Site,
    name: str,
    *,
    kind: Kind | None = None,
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
        cuda_archs=cuda_archs or site.hardware.compute_capability.replace(".", "") or "80,90",
        origin=origin,
        channels=channels,
        proxies=tuple((key, value) for key, value in sorted(site.env.items()) if value and is_proxy(key)),
    )


def nccl_for(site: Site, requested: str) -> str:
    """NCCL of a Horovod that runs there: none on CPUs, though torch of the package index has CUDA all the same."""
    return "none" if requested == "auto" and site.device == "cpu" else requested


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
