"""The scripts that make and prove an environment: pure functions of its specification.

They run the same programs that build and prove Horovod in images (``containers/horovod``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePath

import msgspec

from runner.core import package_directory
from runner.environments.spec import CONDA_PYTHON, VARIABLES, EnvironmentSpec, PackagesSpec
from runner.model.exit_codes import (
    BUSY,
    NO_CONDA,
    NO_FRAMEWORK,
    NO_HOROVOD,
    NOT_LOADED,
    NOT_MADE,
    NOT_PROVEN,
    WRONG_PACKAGES,
)
from runner.model.image import Activate, Framework, Setup
from runner.model.step import Export, Load, Run, Statement, Unset, text, texts
from runner.planning.environment import setup_lines
from runner.render import quote, statement

_PYTHON = f"python={CONDA_PYTHON}"
_PIP = ("python3", "-m", "pip")
_QUIET = ("--disable-pip-version-check", "--progress-bar", "off")

# Installers of Miniforge and Miniconda take `-b -p DIRECTORY`. What they made cannot be moved, so it is made in its
# place; a mark beside it tells an interrupted one from a directory that was there before. Two at once wait.
_INSTALL = """\
exec 8>>"$2.lock" && flock 8 || exit 1
if [ -x "$2/bin/conda" ] && [ ! -e "$2.installing" ]; then exit 0; fi
if [ -e "$2" ] && [ ! -e "$2.installing" ]; then echo "$2 is there, and is no conda" >&2; exit 1; fi
rm -rf -- "$2" && : >"$2.installing" && bash "$1" -b -p "$2" && [ -e "$2/etc/profile.d/conda.sh" ] || exit 1
rm -f -- "$2.installing"
"""

# Variables of a login shell that change which Python runs and what it imports. Proxies and pip's settings stay.
_LEAKS = (
    *("PYTHONPATH", "PYTHONHOME", "PYTHONSTARTUP", "VIRTUAL_ENV", "LD_PRELOAD", "BASH_ENV"),
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
    environment, work = str(places.environment), places.work
    variant = _variant(spec.mpi, spec.nccl)
    made: list[Statement] = [
        Export("PIP_CACHE_DIR", text(str(places.caches / "pip"))),
        Export("CONDA_PKGS_DIRS", text(str(places.caches / "conda"))),
        *(Export(name, text(value)) for name, value in spec.proxies),
        *_installed(spec.setup, places),
        *_loaded(spec.setup),
    ]
    if spec.kind == "virtualenv":
        seen = ("--system-site-packages",) if spec.origin == "modules" else ()
        made += [
            Run(texts("python3", "-m", "venv", *seen, environment), NOT_MADE),
            _activated(Setup(activate=Activate(virtualenv=environment))),
        ]
    elif spec.kind == "conda":
        sources = ("--override-channels", *(f"--channel={url}" for url in spec.channels)) if spec.channels else ()
        make = texts("conda", "create", "--yes", "--quiet", *sources, "--prefix", environment, _PYTHON)
        made += [Load((make,), NOT_MADE), _activated(Setup(activate=Activate(conda=environment)))]
    if places.packages is not None:
        made += _without_network(places.packages, places.programs)
    if spec.requirements and places.packages is not None:
        # All that is required is listed: nothing is resolved again.
        by_hash = ("--no-deps", "--require-hashes", "-r", str(places.packages / package_directory.REQUIREMENTS))
        made.append(Run(texts(*_PIP, "install", *_QUIET, *by_hash), NO_FRAMEWORK))
    elif spec.requirements:
        made.append(Run(texts(*_PIP, "install", *_QUIET, "--", *spec.requirements), NO_FRAMEWORK))
    made += [Export(name, text(value)) for name, value in VARIABLES[spec.framework].items()]
    wheel = ("--wheel", str(work / "wheel"))

    def program(name: str, *words: str) -> tuple[str, ...]:
        return ("python3", str(places.programs / name), *words)

    framework = ("--framework", spec.framework)
    theirs = "shipped" if spec.kind == "modules" else "auto"
    build = ("wheel", *framework, *variant, "--cuda-archs", spec.cuda_archs, "--horovod", theirs)
    made.append(Run(texts(*program("build.py", *build, "--out", wheel[1], "--shelf", str(places.wheels))), NO_HOROVOD))
    if spec.kind != "modules":
        made.append(Run(texts(*program("install.py", *framework, *wheel, "--place", "environment")), NO_HOROVOD))
    proof, about = str(work / "proof.json"), str(work / "about.json")
    made += [
        Run(texts(*program("prove.py", *framework, *variant, "--write", proof)), NOT_PROVEN),
        Export("BASE", text(" ".join((spec.kind, *spec.setup.modules)))),
        Run(texts(*program("describe.py", *framework, *wheel, "--proof", proof, "--write", about)), NOT_PROVEN),
    ]
    # The script itself holds the lock, as its starter may be killed while it runs.
    return _script(made, _holding(places.lock))


def collection(spec: PackagesSpec, work: PurePath, programs: PurePath) -> str:
    """The script that collects packages below ``work``, and leaves ``about.json`` there: what they are for.

    It holds the lock ``work/lock``, as its starter may be killed while it runs.
    """
    statements: list[Statement] = [
        Export("PIP_CACHE_DIR", text(str(work / "cache"))),
        *(Export(name, text(value)) for name, value in spec.proxies),
        *_loaded(spec.setup),
        Run(texts(spec.python, "-m", "venv", str(work / "venv")), NOT_MADE),
    ]
    python = str(work / "venv/bin/python3")  # not activated: the path may have any character
    framework = str(work / package_directory.FRAMEWORK)
    if spec.requirements:
        pip = (python, "-m", "pip", "wheel", *_QUIET, "--wheel-dir", framework)
        statements.append(Run(texts(*pip, "--", *spec.requirements), NO_FRAMEWORK))
    words = ["--framework", spec.framework, "--into", str(work / package_directory.HOROVOD)]
    words += ["--write", str(work / "about.json")]
    words += ["--beside", framework] if spec.requirements else []
    words += ["--pythons", ",".join(spec.pythons)] if spec.pythons else []
    words += ["--machine", spec.machine] if spec.machine else []
    statements.append(Run(texts(python, str(programs / "collect.py"), *words), NO_HOROVOD))
    return _script(statements, _holding(work / "lock"))


def _without_network(packages: PurePath, programs: PurePath) -> tuple[Statement, ...]:
    """pip takes packages from the directory alone, whatever its configuration says, and only those that fit here."""
    places = (packages / name for name in (package_directory.FRAMEWORK, package_directory.HOROVOD))
    return (
        Run(texts("python3", str(programs / "fits.py"), str(packages)), WRONG_PACKAGES),
        Unset(("PIP_CONSTRAINT", "PIP_NO_BINARY")),  # they would choose other files than those that were collected
        Export("PIP_CONFIG_FILE", text("/dev/null")),
        Export("PIP_NO_INDEX", text("1")),
        # As URLs: pip takes a blank in this variable for the end of a path.
        Export("PIP_FIND_LINKS", text(" ".join(place.as_uri() for place in places))),
    )


def proof(
    setup: Setup,
    framework: Framework,
    programs: PurePath,
    *,
    env: Mapping[str, str],
    mpi: str = "auto",
    nccl: str = "auto",
) -> str:
    """The script that proves the Horovod that a setup brings, with two processes."""
    words = ("python3", str(programs / "prove.py"), "--framework", framework, *_variant(mpi, nccl))
    exports = (Export(name, text(value)) for name, value in env.items())
    return _script([*_loaded(setup), *exports, Run(texts(*words), NOT_PROVEN)])


def listing(setup: Setup) -> str:
    """The script that prints the names of all modules that the setup could load, a line each."""
    prepared = msgspec.structs.replace(setup, modules=(), conda="", activate=Activate())
    # Lmod knows those below other modules only by `spider`, Environment Modules have no such command.
    shown = "{ module -t spider || module -t avail; } 2>&1"
    ready = (*setup_lines(prepared), ("module", "list"))
    return _script([Load(tuple(texts(*argv) for argv in ready), NOT_LOADED)]) + f"{shown}\n"


def _holding(lock: PurePath) -> str:
    return f"exec 9>>{quote(str(lock))} && flock 9 || exit {BUSY}"


def _variant(mpi: str, nccl: str) -> tuple[str, ...]:
    return ("--mpi", mpi, "--nccl", nccl, "--place", "environment")


def _loaded(setup: Setup) -> tuple[Load, ...]:
    found = setup_lines(setup)
    return (Load(tuple(texts(*argv) for argv in found), NOT_LOADED),) if found else ()


def _installed(setup: Setup, places: Places) -> tuple[Run, ...]:
    """The setup's conda, from the installer, unless it is there."""
    if places.installer is None or not setup.conda:
        return ()
    return (Run(texts("bash", "-c", _INSTALL, "bash", str(places.installer), setup.conda), NO_CONDA),)


def _activated(setup: Setup) -> Load:
    return Load(tuple(texts(*argv) for argv in setup_lines(setup)), NOT_MADE)


def _script(statements: list[Statement], *lines_first: str) -> str:
    head: list[Statement] = [
        Unset(_LEAKS),
        Export("PYTHONNOUSERSITE", text("1")),  # ~/.local would shadow what is made here
        Export("PYTHONDONTWRITEBYTECODE", text("1")),  # the programs may lie where others use them
    ]
    body = (statement(entry) for entry in (*head, *statements))
    return "\n".join(("#!/bin/bash", "set -uo pipefail", *lines_first, *body, ""))
