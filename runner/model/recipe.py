"""What to run: a recipe's own words, before any site or request."""

from __future__ import annotations

from typing import Literal

import msgspec

Option = str | int | float | bool | None


def written(value: Option) -> str:
    """A value as ``--set``, and ``limits``, take it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


class Recipe(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A folder with ``recipe.yaml`` and the program that it runs.

    Attributes:
        image: image reference; the site chooses the tag where it has none.
        program: argument list; it starts in the recipe's own directory.
        framework: what forms the world: ``horovod``, or ``none`` for programs that only read the environment.
        result: ``throughput`` where the program must leave a measured result, ``none`` where it only runs, ``if-left``
            where it may leave one, which is then held to the same proof.
        needs: Python modules that the program imports besides the standard library; the image holds them, and where
            there is no image this machine must.
        processes: ``per-gpu`` where a rank is started for each GPU, ``own`` where the program starts its own on a node.
        options: each becomes ``--key value`` (true: ``--key``; false or null: left out), overridden by ``--set``.
        choices: the values that an option may have, where they are few; `submit` refuses any other.
        limits: option -> its value -> the values that other options may have with it.
        samples_option: option that holds the samples (images) of a rank and step; empty where there is none.
        env: environment of every rank; null takes away what the site sets.
    """

    name: str
    description: str
    image: str
    program: tuple[str, ...]
    framework: Literal["horovod", "none"] = "horovod"
    result: Literal["throughput", "none", "if-left"] = "none"
    needs: tuple[str, ...] = ()
    processes: Literal["per-gpu", "own"] = "per-gpu"
    options: dict[str, Option] = {}
    choices: dict[str, tuple[str | int, ...]] = {}
    limits: dict[str, dict[str, dict[str, tuple[str | int | bool, ...]]]] = {}
    samples_option: str = ""
    env: dict[str, str | None] = {}
