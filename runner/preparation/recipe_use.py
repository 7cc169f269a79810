"""How a recipe is run at each of the shipped sites. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from dataclasses import dataclass

from runner.core.invocation import PROGRAM
from runner.model.backends import SCHEDULERS
from runner.model.request import Recipe, Request
from runner.model.site import Site
from runner.planning.plan import image_reference

_GPUS, _GPUS_HERE = 16, 2


@dataclass(frozen=True)
class UseAtSite:
    """The command at one site.

    Attributes:
        image: the image that the job takes there.
        needs: the user's values that jobs there have to have, by their option or in the configuration.
    """

    site: str
    command: tuple[str, ...]
    image: str
    needs: tuple[str, ...]


def commands_at_sites(recipe: str, program: Recipe, sites: Iterable[Site]) -> tuple[UseAtSite, ...]:
    """The command at each site that names nodes, or takes them from a scheduler.

    Args:
        recipe: its name, or its folder as the user gives it.
    """
    return tuple(
        UseAtSite(
            site.name,
            (*shlex.split(PROGRAM), "submit", *_amount(site), "--recipe", recipe),
            image_reference(program, site, Request(gpus=1)),
            tuple(site.needs),
        )
        for site in sites
    )


def _amount(site: Site) -> tuple[str, ...]:
    nodes = SCHEDULERS[site.scheduler].nodes
    if nodes == "listed":
        return "--gpus", str(_GPUS), "--hosts", "nodea:8,nodeb:8"
    return "--gpus", str(_GPUS_HERE if nodes == "this-machine" else _GPUS), "--site", site.name
