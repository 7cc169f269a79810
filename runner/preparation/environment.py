"""Environments from the options of a command: which one to make, to prove, or to list."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from runner.core import package_directory
from runner.core.errors import RefusedError, UsageError
from runner.core.package_directory import PackageDirectory
from runner.environments import directory
from runner.environments.make import NOTHING_GIVEN, Given, script_of
from runner.environments.script import (
    REQUIREMENTS,
    EnvironmentSpec,
    PackagesSpec,
    driver_misfit,
    environment_spec,
    nccl_for,
    packages_of_images,
    packages_of_site,
)
from runner.model.backends import NATIVE, SCHEDULERS
from runner.model.image import Environment, EnvironmentKind, Framework, Setup
from runner.model.request import Request
from runner.model.site import RuntimeAtSite
from runner.planning.environment import modules_of_environment
from runner.preparation.site import Say, UserSite, read_user_site, silent
from runner.sites.loader import gpu_driver

MACHINES = {"linux/amd64": "x86_64", "linux/arm64": "aarch64"}  # platforms of images -> what uname(1) calls them
OWN_CONDA = ".conda"  # beside the environments: of a site that names no other


@dataclass(frozen=True)
class PreparedEnvironment:
    """An environment to be made; ``root``: its directory, ``site``: name of the site that it is for."""

    spec: EnvironmentSpec
    root: Path
    site: str
    given: Given = NOTHING_GIVEN

    @property
    def script(self) -> str:
        """The whole script that makes it."""
        return script_of(self.spec, self.root, self.given)


@dataclass(frozen=True)
class Proof:
    """What is to be proven: ``setup`` provides a Horovod for ``framework``; ``title`` names it for people."""

    title: str
    setup: Setup
    framework: Framework
    env: Mapping[str, str]
    mpi: str
    nccl: str


def prepare_environment(
    name: str,
    *,
    site: str | None,
    scratch: str | None,
    at: Path | None,
    force: tuple[str, ...],
    framework: Framework | None,
    conda_installer: Path | None = None,
    wheels: Path | None = None,
    say: Say = silent,
    keep: bool = True,
    **choices: Any,
) -> PreparedEnvironment:
    """Decide what environment to make, and where.

    Args:
        at: directory of environments; None for the user's on scratch.
        force: codes that shall not refuse.
        conda_installer: file that installs conda where there is none.
        wheels: directory of packages, instead of a package index.
        say, keep: for a site that is not named, see ``read_user_site``.
        choices: as ``environment_spec`` takes them.

    Raises UsageError: a name, path, site or code that is not right; RefusedError: it would lie in a home directory, the
    scratch directory is unknown, or the packages are for something else.
    """
    user_site = _user_site(site, scratch, say, keep=keep)
    for code in force:
        if code != directory.IN_HOME:
            raise UsageError(f"no check has the code {code!r}", where="--force", fix=f"codes: {directory.IN_HOME}")
    root = directory.directory_of(name, at or directory.user_directory(user_site.personal.scratch))
    directory.check_path(root)
    own = directory.beside(root, OWN_CONDA)
    conda = str(own) if conda_installer is not None or own.exists() else ""
    packages = package_directory.opened(wheels) if wheels is not None else None
    if packages is not None and framework is None and packages.manifest.framework == "tensorflow":
        framework = "tensorflow"
    spec = environment_spec(user_site.site, name, framework=framework or "pytorch", conda=conda, **choices)
    if packages is not None:
        spec = _from_packages(spec, user_site, packages, choices.get("requirements") or ())
    site_driver = user_site.site.hardware.driver
    if not site_driver and SCHEDULERS[user_site.site.scheduler].nodes == "this-machine":
        site_driver = gpu_driver()
    why, fix = driver_misfit(spec.requirements, site_driver)
    if why:  # before gigabytes are fetched, and Horovod compiled
        raise RefusedError(why, where=f"site {user_site.site.name}", fix=fix)
    if conda_installer is not None and spec.kind != "conda":
        what = f"this environment is of the kind {spec.kind}"
        raise UsageError(what, where="--conda-installer", fix="--kind conda, or leave it out")
    if conda_installer is not None and not conda_installer.is_file():
        fix = "download the installer of Miniforge or Miniconda, and name its file"
        raise UsageError("there is no such file", where=f"--conda-installer {conda_installer}", fix=fix)
    home = directory.home_above(root)
    if home is not None and directory.IN_HOME not in force:
        raise RefusedError(
            f"[{directory.IN_HOME}] an environment has gigabytes and tens of thousands of files, and {home} is a home",
            where=str(root),
            fix=f"--scratch or --at DIR outside of it; or --force {directory.IN_HOME}",
        )
    installer = conda_installer.absolute() if conda_installer is not None else None
    return PreparedEnvironment(spec, root, user_site.site.name, Given(installer=installer, packages=packages))


def _from_packages(
    spec: EnvironmentSpec, user_site: UserSite, packages: PackageDirectory, requirements: tuple[str, ...]
) -> EnvironmentSpec:
    """The environment with the packages of a directory, which must have been collected for such a one."""
    wheels, manifest = packages.path, packages.manifest
    where = f"--wheels {wheels}"
    if requirements:
        what = "what is installed was chosen when the packages were collected"
        fix = f"leave it out, or give it where there is a network: {package_directory.collect_command(wheels)}"
        raise UsageError(what, where="--requirement", fix=fix)
    if manifest.framework != spec.framework:
        what = f"these packages are for {manifest.framework}, and not for {spec.framework}"
        fix = f"--framework {manifest.framework}, or collect with --framework {spec.framework}"
        raise RefusedError(what, where=where, fix=fix)
    if not spec.requirements:
        return replace(spec, packages=manifest.identity)
    if not manifest.requirements:
        what = f"these packages hold no {spec.framework}: they are for images, or for modules that bring it"
        raise RefusedError(what, where=where, fix=package_directory.collect_fix(wheels))
    device = user_site.site.device
    other = manifest.requirements == REQUIREMENTS.get((spec.framework, manifest.device))
    if other and spec.requirements != manifest.requirements:
        raise RefusedError(
            f"these packages are for {manifest.device} ({', '.join(manifest.requirements)}), and the site has {device}",
            where=where,
            fix=f"collect with --site {user_site.site.name}, where there is a network",
        )
    return replace(spec, requirements=manifest.requirements, packages=manifest.identity)


def prepare_packages(
    *,
    site: str | None,
    framework: Framework | None,
    modules: tuple[str, ...],
    kind: EnvironmentKind | None,
    requirements: tuple[str, ...],
    python: str | None,
    image: bool,
    platform: str | None,
    say: Say = silent,
) -> PackagesSpec:
    """Decide what packages to collect.

    Args:
        image: for images, whatever their Python, and without the framework. platform: of the images.

    Raises UsageError: options that do not go together, or a platform without packages.
    """
    place, chosen = _user_site(site, None, say).site, framework or "pytorch"
    if not image:
        if platform:
            what = "an environment's packages are those of the machine that collects them"
            fix = "collect on a machine with such a processor; for images: --image"
            raise UsageError(what, where="--platform", fix=fix)
        return packages_of_site(
            place, kind=kind, framework=chosen, modules=modules, requirements=requirements, python=python
        )
    environment = {"--module": modules, "--kind": kind, "--requirement": requirements, "--python": python}
    conflicting = [name for name, value in environment.items() if value]
    if conflicting:
        what = f"{conflicting[0]} is for environments, and --image for images"
        raise UsageError(what, where=conflicting[0], fix="leave out one of them")
    if platform and platform not in MACHINES:
        what = f"Horovod's packages for {platform} are not known"
        raise UsageError(what, where="--platform", fix=f"one of: {', '.join(MACHINES)}")
    return packages_of_images(place, chosen, MACHINES[platform] if platform else "")


def choose_proof(
    name: str | None,
    *,
    site: str | None,
    scratch: str | None,
    framework: Framework | None,
    modules: tuple[str, ...],
    mpi: str,
    nccl: str,
    say: Say = silent,
) -> Proof:
    """What to prove: an environment, modules, or what the site itself provides. Raises UsageError: both an environment
    and modules; RefusedError: there is no such environment.
    """
    user_site = _user_site(site, scratch, say)
    nccl = nccl_for(user_site.site, nccl)
    if name is None:
        setup = user_site.site.ways.get(NATIVE, RuntimeAtSite()).setup
        setup = msgspec.structs.replace(setup, modules=modules_of_environment(setup.modules, modules))
        title = ", ".join(modules) or f"{user_site.site.name}'s own"
        return Proof(title, setup, framework or "pytorch", {}, mpi, nccl)
    if modules:
        raise UsageError("NAME has modules of its own", where="--module", fix="leave out one of them")
    made = directory.find(name, user_site.personal.scratch, user_site.site.name)
    nccl = nccl_for(user_site.site, made.nccl)
    return Proof(made.name, made.setup, framework or made.framework or "pytorch", made.env, made.mpi, nccl)


def list_environments(
    *, site: str | None, scratch: str | None, at: Path | None, say: Say = silent
) -> tuple[tuple[Path, Environment | None], ...]:
    """The user's environments at a site with their directories; None for one that is not finished."""
    scratch = _user_site(site, scratch, say).personal.scratch
    place = at.absolute() if at else directory.user_directory(scratch)
    return tuple(directory.all_environments(place, own=at is None))


def _user_site(site: str | None, scratch: str | None, say: Say, *, keep: bool = True) -> UserSite:
    return read_user_site(site, Request(gpus=1, scratch=scratch), for_job=False, say=say, keep=keep)
