"""The user's program, as typed after ``--``: it has no recipe file."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Sequence

from runner.model.recipe import Recipe
from runner.planning.starters import TORCHRUN, starter

_IMAGE = "gpu-runner/horovod-pytorch"
_FILE = re.compile(r"[^-].*\.(py|sh|pl|R|jl)\Z")


def is_program(arguments: Sequence[str]) -> bool:
    """Whether arguments after ``--`` are a program: they are unless the first looks like an option."""
    return bool(arguments) and not arguments[0].startswith("-")


def recipe_of(program: Sequence[str]) -> Recipe:
    """The recipe that runs a program with its arguments. It has the name of the program's file; torchrun is started
    once a node.
    """
    file = next((argument for argument in program if _FILE.match(argument)), program[0])
    stem = posixpath.splitext(posixpath.basename(file))[0]
    name = re.sub(r"[^A-Za-z0-9._-]", "-", stem).strip(".-")[:64]
    starts_ranks = starter(program)
    return Recipe(
        name=name or "program",
        description="A program without a recipe.",
        image=_IMAGE,
        program=tuple(program),
        framework="none",
        result="if-left",
        processes="own" if starts_ranks is not None and starts_ranks.name == TORCHRUN else "per-gpu",
    )
