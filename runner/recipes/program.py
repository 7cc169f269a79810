"""A program of the user's own, as typed after ``--``: no recipe, and nothing of ours in it."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Sequence

from runner.model.recipe import Recipe

_IMAGE = "gpu-runner/horovod-pytorch"
_FILE = re.compile(r"[^-].*\.(py|sh|pl|R|jl)\Z")


def names_a_program(words: Sequence[str]) -> bool:
    """Whether words after ``--`` are a program: they are unless the first looks like an option."""
    return bool(words) and not words[0].startswith("-")


def recipe_of(words: Sequence[str]) -> Recipe:
    """The recipe that runs these words. It bears the name of the program's file."""
    file = next((word for word in words if _FILE.match(word)), words[0])
    stem = posixpath.splitext(posixpath.basename(file))[0]
    name = re.sub(r"[^A-Za-z0-9._-]", "-", stem).strip(".-")[:64]
    return Recipe(
        name=name or "program",
        description="A program of the user's own.",
        image=_IMAGE,
        program=tuple(words),
        framework="none",
        result="if-left",
    )
