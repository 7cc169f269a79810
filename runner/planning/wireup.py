"""How the ranks of a job find each other: a function of what the image can, the site has, and the user asks for."""

from __future__ import annotations

import msgspec

from runner.errors import RefusedError
from runner.model.names import Wireup
from runner.model.plan import PlannedImage
from runner.model.site import Site

# Above this many ranks MPI coordinates better, where it is proven to work (facts: Gloo's ring is linear in ranks).
RENDEZVOUS_RANKS = 64
# Cost of one coordination cycle through the ring for each rank, ms: 0.5-0.9 at 16, 4-8 at 128, 15-30 at 512.
CYCLE_MS_PER_RANK = (0.03, 0.06)


class Choice(msgspec.Struct, frozen=True):
    """A wireup, and the value of ``srun --mpi`` that goes with it (None: no such option)."""

    wireup: Wireup
    mpi: str | None


def alone(tasks_per_node: tuple[int, ...]) -> tuple[int, ...]:
    """The tasks of a program that starts processes of its own: itself.

    Raises:
        RefusedError: more than one node.
    """
    if len(tasks_per_node) > 1:
        raise RefusedError(
            f"a program that starts its own processes knows one node only, and {len(tasks_per_node)} are needed",
            where="--wireup own, or the recipe's processes: own",
            mend="ask for the GPUs of one node, or let a rank be started for each GPU",
        )
    return (1,)


def choose(site: Site, image: PlannedImage, runtime: str, asked: Wireup | None, ranks: int) -> Choice:
    """What was asked for; else MPI where there are many ranks and it is proven for this runtime; else the rendezvous,
    which needs neither MPI nor PMI.

    Raises:
        RefusedError: what was asked for cannot work: says why.
    """
    if asked == "own":
        return Choice(asked, site.slurm.mpi)
    if asked is not None and asked != "rendezvous":
        why = obstacle(site, image, asked)
        if why:
            raise RefusedError(why, where=f"--wireup {asked}", mend="use --wireup rendezvous, which needs no MPI")
        return _started_by(asked)
    if asked is None and ranks > RENDEZVOUS_RANKS:
        ways: tuple[Wireup, ...] = ("pmix", "pmi2", "mpich")
        for way in ways:
            if f"{runtime}/{way}" in site.proven and image.mpi and not obstacle(site, image, way):
                return _started_by(way)
    return Choice("rendezvous", site.slurm.mpi)


def obstacle(site: Site, image: PlannedImage, wireup: Wireup) -> str:
    """Why an MPI wireup cannot work at a site with an image; empty if nothing is known against it."""
    known = ", ".join(site.mpi.pmi) or "none"
    if image.mpi == "none":
        return f"{image.reference} has no MPI"
    if wireup == "mpich" and site.mpi.abi != "mpich":
        return f"{site.name} is not known to have an MPI with MPICH's ABI"
    if wireup == "mpich" and image.mpi == "openmpi":
        return f"{image.reference} has Open MPI, which cannot use the MPICH of {site.name}"
    if wireup != "mpich" and site.scheduler != "slurm":
        return f"{wireup} is a plugin of srun, and {site.name} has {site.scheduler}"
    if wireup != "mpich" and wireup not in site.mpi.pmi:
        return f"srun at {site.name} is not known to have {wireup} (known: {known})"
    return ""


def _started_by(wireup: Wireup) -> Choice:
    return Choice(wireup, None if wireup == "mpich" else wireup)
