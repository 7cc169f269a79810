"""What a ladder is climbed with, from the options of ``prove``: GPUs, directory, image or environment."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runner.core.errors import RefusedError, UsageError
from runner.core.progress import Progress
from runner.core.text import instead
from runner.environments.make import make
from runner.model.backends import SCHEDULERS
from runner.model.request import Request
from runner.preparation.environment import PreparedEnvironment, prepare_environment
from runner.preparation.site import read_user_site
from runner.proving import rungs
from runner.proving.climb import Place
from runner.proving.ladder import Ladder
from runner.sites.loader import gpu_driver, gpu_uuids

ENVIRONMENT = "prove"  # the one that is made where none is named
_RANKS_IN_PRETENCE = 2


@dataclass(frozen=True)
class Choices:
    """What was decided.

    Attributes:
        environment: to be made, or found up to date, before the first rung; None where one or an image is named.
    """

    ladder: Ladder
    place: Place
    environment: PreparedEnvironment | None


def choose(
    *,
    site: str,
    runs: Path,
    gpus: int | None,
    quick: bool,
    pretend: bool,
    again: tuple[str, ...],
    at: Path | None,
    kind: str | None,
    wheels: Path | None,
    **options: Any,
) -> Choices:
    """Decide it.

    Args:
        runs: directory for run directories; the ladder's own lies in it.
        gpus: None for all of a node.
        at, kind, wheels: of the environment, as ``env create`` takes them.
        options: of every job, as ``make_options`` takes them.

    Raises:
        RefusedError: the site has no GPU, and the ladder does not pretend. UsageError: options that do not fit.
    """
    for name in again:
        if name not in rungs.names():
            fix = instead(name, rungs.names(), f"rungs: {', '.join(rungs.names())}")
            raise UsageError(f"no rung named {name!r}", where="--again", fix=fix)
    found = read_user_site(site, Request(gpus=1, scratch=options.get("scratch")), for_job=False).site
    if found.device == "cpu" and not pretend:
        raise RefusedError(
            f"{found.name} has no NVIDIA GPU that can be seen and opened from here",
            where=f"--site {site}",
            fix="run it on a machine with GPUs (`nvidia-smi` lists them); --pretend-cpu climbs the ladder on "
            "processors, which proves the command and nothing of GPUs",
        )
    if found.device != "cpu" and pretend:
        raise UsageError(f"{found.name} has GPUs", where="--pretend-cpu", fix="leave it out")
    count = gpus if gpus is not None else _RANKS_IN_PRETENCE if pretend else found.node.gpus
    if count < 1:
        raise UsageError(f"{count} GPUs are not possible", where="--gpus", fix="request one or more")
    root = runs.absolute() / f"prove-{found.name}"
    environment = None
    given = [name for name in ("image", "env_name", "runtime") if options.get(name)]
    if given and (at or kind or wheels):
        raise UsageError(
            "no environment is made where an image, an environment or a runtime is named",
            where="--at, --kind, --wheels",
            fix=f"leave out these, or --{given[0].replace('_', '-')}",
        )
    if not given:
        environment = prepare_environment(
            ENVIRONMENT,
            site=site,
            scratch=options.get("scratch"),
            at=at or root / "environments",
            force=tuple(code for code in options.get("force", ()) if code == "environment-in-home"),
            framework=None,
            kind=kind,
            wheels=wheels,
            modules=(),
            mpi="auto",
            nccl="auto",
            requirements=(),
            cuda_archs=None,
            channels=(),
        )
        options["env_name"] = str(environment.root)
    options["force"] = tuple(code for code in options.get("force", ()) if code != "environment-in-home")
    here = SCHEDULERS[found.scheduler].nodes == "this-machine"
    place = Place(root, {**options, "site": site}, (*sorted(gpu_uuids()), gpu_driver()) if here else ())
    return Choices(Ladder(count, quick=quick, pretend=pretend), place, environment)


def ready(choices: Choices, progress: Progress) -> None:
    """Make the environment, if one is to be made; one that is up to date is kept.

    Raises:
        as ``runner.environments.make.make``.
    """
    if choices.environment is not None:
        prepared = choices.environment
        make(prepared.spec, prepared.root, progress, given=prepared.given)
