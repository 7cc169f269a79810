"""An environment for programs that run without a container: what makes it ready, and what it is."""

from __future__ import annotations

from typing import Literal

import msgspec

from runner.model.image import ImageFacts

Kind = Literal["virtualenv", "conda", "modules"]
FrameworkSource = Literal["pip", "modules"]
Framework = Literal["pytorch", "tensorflow"]


class Activate(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is activated: the one, the other, or a virtual environment upon conda's.

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
    """One that ``env create`` has made and proven (``environment.json``).

    Attributes:
        kind: what was made; of ``modules`` nothing was, the site's own were proven.
        directory: absolute, of what was made; empty for ``modules``.
        inputs: hash of all that went into it.
        setup: what makes it ready in a job.
        env: variables that every program in it needs.
        about: what it says of itself, in an image's words.
        mpi, nccl: as asked for: ``auto``, ``none``, a flavour, a directory.
        made_s: Unix time.
    """

    name: str
    kind: Kind
    framework: Framework
    directory: str
    inputs: str
    setup: Setup
    about: ImageFacts
    env: dict[str, str] = {}
    mpi: str = "auto"
    nccl: str = "auto"
    made_s: float = 0.0
