"""An environment for programs that run without a container: what makes it ready, and what it is."""

from __future__ import annotations

from typing import Literal

import msgspec

from runner.model.image import ImageFacts

Kind = Literal["virtualenv", "conda", "modules"]
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
    kind: Kind
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
