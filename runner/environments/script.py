"""The specification of an environment, and the scripts that make and prove it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePath

import msgspec

from runner.core import package_directory
from runner.model import exit_codes
from runner.model.backends import NATIVE
from runner.model.image import Activate, EnvironmentKind, Framework, FrameworkSource, Setup
from runner.model.site import RuntimeAtSite, Site
from runner.model.step import Export, Load, Run, Statement, Unset, text, texts
from runner.planning.environment import modules_of_environment, setup_lines
from runner.render import quote, statement

# The framework of each device, with what the proof and the recipes import besides; the versions that images are proven
# with (docs/proofs.md).
REQUIREMENTS: dict[tuple[Framework, str], tuple[str, ...]] = {
    ("pytorch", "cuda"): ("torch==2.13.0", "numpy>=1.26,<3"),
    ("pytorch", "cpu"): ("torch==2.13.0", "numpy>=1.26,<3"),
    ("tensorflow", "cuda"): ("tensorflow[and-cuda]==2.21.0",),
    ("tensorflow", "cpu"): ("tensorflow-cpu==2.21.0",),
}
# The pinned torch has CUDA 13, which R580 carries; its 2.6.0 has CUDA 12.4, which every driver from R525 on carries.
_CUDA_13, _CUDA_12 = 580, 525
CONDA_PYTHON = "3.11"  # of what conda makes: the one that images are proven with
# Of base images: NVIDIA's had 3.8, 3.10 and 3.12 so far.
IMAGE_PYTHONS = ("3.8", "3.9", "3.10", "3.11", "3.12", "3.13", "3.14")
# Keras 2, which Horovod's optimizer knows, as in our images.
VARIABLES: dict[Framework, dict[str, str]] = {"pytorch": {}, "tensorflow": {"TF_USE_LEGACY_KERAS": "1"}}


def driver_misfit(requirements: tuple[str, ...], driver: str) -> tuple[str, str]:
    """Why the pinned framework could not use GPUs with this driver (``535.104.05``; empty: unknown), and what to do;
    empty where nothing is known against it.

    >>> driver_misfit(REQUIREMENTS["pytorch", "cuda"], "570.86.10")[1]
    '--requirement torch==2.6.0 --requirement "numpy<3"'
    """
    branch = int(driver.partition(".")[0]) if driver[:1].isdigit() else _CUDA_13
    if requirements != REQUIREMENTS["pytorch", "cuda"] or branch >= _CUDA_13:
        return "", ""
    fix = (
        '--requirement torch==2.6.0 --requirement "numpy<3"'
        if branch >= _CUDA_12
        else (f"--requirement torch==VERSION of a CUDA that it carries; or ask for a driver of R{_CUDA_12} or newer")
    )
    return f"{requirements[0]} has CUDA 13, which needs driver {_CUDA_13} or newer, and {driver} is there", fix


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


def environment_spec(
    site: Site, name: str, *, kind: EnvironmentKind | None = None, framework: Framework = "pytorch",
    modules: tuple[str, ...] = (), requirements: tuple[str, ...] = (), mpi: str = "auto", nccl: str = "auto",
    cuda_archs: str | None = None, channels: tuple[str, ...] = (), conda: str = "",
) -> EnvironmentSpec:  # fmt: skip
    """What the site's native way makes of an environment; empty and None leave the choice to it.

    Args:
        modules: as ``modules_of_environment`` takes them.
        requirements: of pip, instead of the pinned ones.
        conda: directory of a conda installation, for a site that names none of its own.
    """
    way = site.ways.get(NATIVE, RuntimeAtSite())
    made = kind or way.kind
    origin: FrameworkSource = "modules" if made == "modules" else way.framework
    pinned = () if origin == "modules" else REQUIREMENTS[framework, site.device]
    setup = msgspec.structs.replace(way.setup, modules=modules_of_environment(way.setup.modules, modules))
    if made == "conda":
        setup = msgspec.structs.replace(setup, conda=setup.conda or conda)
    archs = cuda_archs or site.hardware.compute_capability.replace(".", "") or "auto"
    return EnvironmentSpec(
        name, made, framework, setup, requirements or pinned, mpi=mpi, nccl=nccl_for(site, nccl), cuda_archs=archs,
        origin=origin, channels=channels, proxies=proxies_of(site),
    )  # fmt: skip


def nccl_for(site: Site, requested: str) -> str:
    """NCCL of a Horovod that runs there: none on CPUs, though torch of the package index has CUDA all the same."""
    return "none" if requested == "auto" and site.device == "cpu" else requested


def packages_of_site(
    site: Site, *, kind: EnvironmentKind | None = None, framework: Framework = "pytorch",
    modules: tuple[str, ...] = (), requirements: tuple[str, ...] = (), python: str | None = None,
) -> PackagesSpec:  # fmt: skip
    """The packages of an environment as ``of_site`` makes it.

    Args:
        python: of an environment; it is called as it is, without the site's modules. None: what these provide.
    """
    wanted = environment_spec(site, "", kind=kind, framework=framework, modules=modules, requirements=requirements)
    setup = wanted.setup if python is None else Setup()
    program = python or (f"python{CONDA_PYTHON}" if wanted.kind == "conda" else "python3")
    return PackagesSpec(framework, site.device, wanted.requirements, setup, program, proxies=wanted.proxies)


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


_PYTHON = f"python={CONDA_PYTHON}"
_QUIET = ("--disable-pip-version-check", "--progress-bar", "off")

# Installers of Miniforge and Miniconda take `-b -p DIRECTORY`. What they made cannot be moved, so it is made in its
# place; a mark beside it tells an interrupted one from a directory that was there before. Two at once wait. Where
# others could leave a mark, none is installed (``directory.is_installable``); one that they left before does not count.
_INSTALL = """\
(umask 077 && : >>"$2.lock") && exec 8>>"$2.lock" && flock 8 || exit 1
begun=; [ -L "$2.installing" ] || [ ! -O "$2.installing" ] || begun=yes
if [ -x "$2/bin/conda" ] && [ ! "$begun" ]; then exit 0; fi
if [ -e "$2" ] && [ ! "$begun" ]; then echo "$2 is there, and is no conda" >&2; exit 1; fi
: >>"$2.installing" && rm -rf -- "$2" && bash "$1" -b -p "$2" && [ -e "$2/etc/profile.d/conda.sh" ] || exit 1
rm -f -- "$2.installing" || echo "$2 is installed; remove $2.installing, or it is installed anew" >&2
"""

# Variables of a login shell that change which Python runs and what it imports. Proxies and pip's settings stay.
_LEAKS = (
    *("PYTHONPATH", "PYTHONHOME", "PYTHONSTARTUP", "PYTHONPYCACHEPREFIX", "VIRTUAL_ENV", "LD_PRELOAD", "BASH_ENV"),
    *("PIP_USER", "PIP_TARGET", "PIP_PREFIX"),  # where else pip would install
)


@dataclass(frozen=True)
class Places:
    """Directories, absolute.

    Attributes:
        environment: what is made. work: temporary files. caches: of pip and conda. wheels: of Horovod, kept.
        programs: ``containers/horovod``. lock: a file that is locked meanwhile.
        installer: file that installs conda where the setup's is not there; None where it must be.
        packages: what pip takes packages from, and no network; None where an index provides them.
    """

    environment: PurePath
    work: PurePath
    caches: PurePath
    wheels: PurePath
    programs: PurePath
    lock: PurePath
    installer: PurePath | None = None
    packages: PurePath | None = None


def creation(spec: EnvironmentSpec, places: Places) -> str:
    """The script that makes the environment and proves it; it leaves ``about.json`` in ``places.work``."""
    environment, work, packages = str(places.environment), places.work, places.packages
    made: list[Statement] = [
        *_exports(PIP_CACHE_DIR=str(places.caches / "pip"), CONDA_PKGS_DIRS=str(places.caches / "conda")),
        *_exports(**dict(spec.proxies)),
    ]
    if places.installer is not None and spec.setup.conda:  # it does nothing where conda is there
        installer = str(places.installer)
        made.append(_run(exit_codes.NO_CONDA, "bash", "-c", _INSTALL, "bash", installer, spec.setup.conda))
    made += _loaded(spec.setup)
    if spec.kind == "virtualenv":
        seen = ("--system-site-packages",) if spec.origin == "modules" else ()
        made.append(_run(exit_codes.NOT_MADE, "python3", "-m", "venv", *seen, environment))
        made += _loaded(Setup(activate=Activate(virtualenv=environment)), exit_codes.NOT_MADE)
    elif spec.kind == "conda":
        sources = ("--override-channels", *(f"--channel={url}" for url in spec.channels)) if spec.channels else ()
        make = texts("conda", "create", "--yes", "--quiet", *sources, "--prefix", environment, _PYTHON)
        made.append(Load((make,), exit_codes.NOT_MADE))
        made += _loaded(Setup(activate=Activate(conda=environment)), exit_codes.NOT_MADE)
    if packages is not None:
        # pip takes packages from the directory alone, whatever its configuration says, and only those that fit here.
        shelves = (packages / name for name in (package_directory.FRAMEWORK, package_directory.HOROVOD))
        made += [
            _run(exit_codes.WRONG_PACKAGES, "python3", str(places.programs / "fits.py"), str(packages)),
            Unset(("PIP_CONSTRAINT", "PIP_NO_BINARY")),  # they would choose other files than those that were collected
            # As URLs: pip takes a blank in this variable for the end of a path.
            *_exports(
                PIP_CONFIG_FILE="/dev/null",
                PIP_NO_INDEX="1",
                PIP_FIND_LINKS=" ".join(each.as_uri() for each in shelves),
            ),
        ]
    if spec.requirements:
        which = ("--", *spec.requirements)
        if packages is not None:  # all that is required is listed: nothing is resolved again
            which = ("--no-deps", "--require-hashes", "-r", str(packages / package_directory.REQUIREMENTS))
        made.append(_run(exit_codes.NO_FRAMEWORK, "python3", "-m", "pip", "install", *_QUIET, *which))
    made += _exports(**VARIABLES[spec.framework])
    framework, wheel = ("--framework", spec.framework), ("--wheel", str(work / "wheel"))
    variant, proof = _variant(spec.mpi, spec.nccl), str(work / "proof.json")
    build = ("wheel", *framework, *variant, "--cuda-archs", spec.cuda_archs)
    build += ("--horovod", "shipped" if spec.kind == "modules" else "auto")

    def program(failing: int, name: str, *words: str) -> Run:
        return _run(failing, "python3", str(places.programs / name), *words)

    made.append(program(exit_codes.NO_HOROVOD, "build.py", *build, "--out", wheel[1], "--shelf", str(places.wheels)))
    if spec.kind != "modules":
        made.append(program(exit_codes.NO_HOROVOD, "install.py", *framework, *wheel, "--place", "environment"))
    describe = (*framework, *wheel, "--proof", proof, "--write", str(work / "about.json"))
    made += [
        program(exit_codes.NOT_PROVEN, "prove.py", *framework, *variant, "--write", proof),
        *_exports(BASE=" ".join((spec.kind, *spec.setup.modules))),
        program(exit_codes.NOT_PROVEN, "describe.py", *describe),
    ]
    return _script(made, lock=places.lock)


def collection(spec: PackagesSpec, work: PurePath, programs: PurePath) -> str:
    """The script that collects packages below ``work``, and leaves ``about.json`` there: what they are for."""
    python = str(work / "venv/bin/python3")  # not activated: the path may have any character
    framework = str(work / package_directory.FRAMEWORK)
    statements: list[Statement] = [
        *_exports(PIP_CACHE_DIR=str(work / "cache"), **dict(spec.proxies)),
        *_loaded(spec.setup),
        _run(exit_codes.NOT_MADE, spec.python, "-m", "venv", str(work / "venv")),
    ]
    if spec.requirements:
        pip = (python, "-m", "pip", "wheel", *_QUIET, "--wheel-dir", framework)
        statements.append(_run(exit_codes.NO_FRAMEWORK, *pip, "--", *spec.requirements))
    words = ["--framework", spec.framework, "--into", str(work / package_directory.HOROVOD)]
    words += ["--write", str(work / "about.json")]
    words += ["--beside", framework] if spec.requirements else []
    words += ["--pythons", ",".join(spec.pythons)] if spec.pythons else []
    words += ["--machine", spec.machine] if spec.machine else []
    statements.append(_run(exit_codes.NO_HOROVOD, python, str(programs / "collect.py"), *words))
    return _script(statements, lock=work / "lock")


def proof(
    setup: Setup, framework: Framework, programs: PurePath, *, env: Mapping[str, str], mpi: str = "auto",
    nccl: str = "auto",
) -> str:  # fmt: skip
    """The script that proves the Horovod that a setup brings, with two processes."""
    words = ("python3", str(programs / "prove.py"), "--framework", framework, *_variant(mpi, nccl))
    return _script([*_loaded(setup), *_exports(**env), _run(exit_codes.NOT_PROVEN, *words)])


def listing(setup: Setup) -> str:
    """The script that prints the names of all modules that the setup could load, a line each."""
    prepared = msgspec.structs.replace(setup, modules=(), conda="", activate=Activate())
    # Lmod knows those below other modules only by `spider`, Environment Modules have no such command.
    shown = "{ module -t spider || module -t avail; } 2>&1"
    ready = (*setup_lines(prepared), ("module", "list"))
    return _script([Load(tuple(texts(*argv) for argv in ready), exit_codes.NOT_LOADED)]) + f"{shown}\n"


def _variant(mpi: str, nccl: str) -> tuple[str, ...]:
    return ("--mpi", mpi, "--nccl", nccl, "--place", "environment")


def _run(failing: int, *words: str) -> Run:
    """``failing``: what the script ends with where the command fails."""
    return Run(texts(*words), failing)


def _exports(**variables: str) -> tuple[Export, ...]:
    return tuple(Export(name, text(value)) for name, value in variables.items())


def _loaded(setup: Setup, failing: int = exit_codes.NOT_LOADED) -> tuple[Load, ...]:
    lines = setup_lines(setup)
    return (Load(tuple(texts(*argv) for argv in lines), failing),) if lines else ()


def _script(statements: list[Statement], *, lock: PurePath | None = None) -> str:
    """The script itself holds the lock, as its starter may be killed while it runs."""
    head: list[Statement] = [
        Unset(_LEAKS),
        # ~/.local would shadow what is made here; the programs may lie where others use them.
        *_exports(PYTHONNOUSERSITE="1", PYTHONDONTWRITEBYTECODE="1"),
    ]
    body = (statement(entry) for entry in (*head, *statements))
    held = () if lock is None else (f"exec 9>>{quote(str(lock))} && flock 9 || exit {exit_codes.BUSY}",)
    return "\n".join(("#!/bin/bash", "set -uo pipefail", *held, *body, ""))
