"""How the ranks of a job find each other: from what the image supports, the site has, and the user requests."""

from __future__ import annotations

import math

import msgspec

from runner.core.errors import RefusedError
from runner.core.invocation import PROGRAM
from runner.model.backends import SCHEDULERS
from runner.model.image import Mpi
from runner.model.plan import PlannedImage
from runner.model.request import Wireup
from runner.model.site import Site

# Above this many ranks MPI coordinates better, where it is proven to work (facts: Gloo's ring is linear in ranks).
RENDEZVOUS_RANKS = 64
BY_MPI: tuple[Wireup, ...] = ("pmix", "pmi2", "mpich")  # the better first
# The library of the MPICH ABI Compatibility Initiative: MPICH, Cray MPICH, Intel MPI, MVAPICH.
MPICH_LIBRARY = "libmpi.so.12"
# Cost of one coordination cycle through the ring for each rank, ms: 0.5-0.9 at 16, 4-8 at 128, 15-30 at 512.
CYCLE_MS_PER_RANK = (0.03, 0.06)
# Seconds until so many clients have formed their mesh, server and clients on two cores (docs/proofs.md, 2026-11-21).
_MESH_S = ((16, 0.05), (64, 0.6), (128, 2.8), (256, 12.3), (512, 65.0))


class Choice(msgspec.Struct, frozen=True):
    """A wireup, and the value of ``srun --mpi`` that goes with it (None: no such option)."""

    wireup: Wireup
    mpi: str | None


class Misfit(msgspec.Struct, frozen=True):
    """Why ranks in an image cannot meet by MPI that way: the finding's code, and the reason."""

    code: str
    what: str


def mesh_s(ranks: int) -> float:
    """Seconds that the ranks take to form their mesh through our rendezvous: as measured, and between and beyond the
    measured points by the power law of the nearest two.
    """
    above = next((index for index, (count, _) in enumerate(_MESH_S) if count >= ranks), len(_MESH_S) - 1)
    (few, few_s), (many, many_s) = _MESH_S[max(above, 1) - 1], _MESH_S[max(above, 1)]
    power = math.log(many_s / few_s) / math.log(many / few)
    return float(few_s * (ranks / few) ** power)


def task_a_node(tasks_per_node: tuple[int, ...]) -> tuple[int, ...]:
    """The tasks of a program that starts its own processes: one a node, with all GPUs that the job has there. Raises
    RefusedError: not all nodes have as many GPUs.
    """
    nodes = len(tasks_per_node)
    if len(set(tasks_per_node)) > 1:
        raise RefusedError(
            f"a program that starts its own processes gets as many GPUs on each node, and {sum(tasks_per_node)} GPUs "
            f"cannot be split evenly over {nodes} nodes",
            where="--wireup own, torchrun, or the recipe's processes: own",
            fix=f"--gpus {max(tasks_per_node) * nodes}, or let the launcher start a rank for each GPU",
        )
    return (1,) * nodes


def choose(
    site: Site,
    image: PlannedImage,
    runtime: str,
    requested: Wireup | None,
    ranks: int,
    *,
    gloo_needed: bool = False,
) -> Choice:
    """The requested wireup; else MPI for many ranks, where it is proven for this runtime; else the rendezvous, which
    needs neither MPI nor PMI. The checks decide whether the image fits the requested one.

    Args:
        gloo_needed: in the rendezvous it is Horovod that meets, by Gloo: without Gloo it meets by MPI.

    Raises RefusedError: the site cannot start ranks in the requested way, or Horovod lacks what it would meet by.
    """
    if gloo_needed and ranks > 1 and requested in (None, "rendezvous") and _lacks_gloo(image):
        return _without_gloo(site, image, requested)
    if requested in ("own", "torchrun"):
        return Choice(requested, site.settings.mpi)
    if requested is not None and requested != "rendezvous":
        why = obstacle(site, requested)
        if why:
            raise RefusedError(why, where=f"--wireup {requested}", fix="use --wireup rendezvous, which needs no MPI")
        return _started_by(requested)
    if requested is None and ranks > RENDEZVOUS_RANKS:
        for way in BY_MPI:
            if f"{runtime}/{way}" in site.proven and image.mpi and not (obstacle(site, way) or misfit(image, way)):
                return _started_by(way)
    return Choice("rendezvous", site.settings.mpi)


def _lacks_gloo(image: PlannedImage) -> bool:
    controllers = image.about.horovod.controllers if image.about else ()
    return bool(controllers) and "gloo" not in {name.lower() for name in controllers}


def _without_gloo(site: Site, image: PlannedImage, requested: Wireup | None) -> Choice:
    """By MPI; each rank would form a world of its own in a rendezvous that Horovod has no Gloo for."""
    against = {way: obstacle(site, way) or getattr(misfit(image, way), "what", "") for way in BY_MPI}
    ways = [way for way in BY_MPI if not against[way]]
    if ways and requested is None:
        return _started_by(ways[0])
    build = f"build one with Gloo: {PROGRAM} build, or env create"
    raise RefusedError(
        f"Horovod in {image.reference} has no Gloo, by which its ranks would meet"
        + ("" if ways else f", and they cannot meet by MPI: {'; '.join(dict.fromkeys(against.values()))}"),
        where="--wireup rendezvous" if requested else "--wireup",
        fix=f"--wireup {ways[0]}; or {build}" if ways else build,
    )


def obstacle(site: Site, wireup: Wireup) -> str:
    """Why an MPI wireup cannot work at a site; empty if nothing is known against it."""
    known = ", ".join(site.mpi.pmi) or "none"
    if wireup == "mpich" and site.mpi.abi != "mpich":
        return f"{site.name} is not known to have an MPI with MPICH's ABI"
    if wireup != "mpich" and not SCHEDULERS[site.scheduler].has_srun:
        return f"{wireup} is a plugin of srun, and {site.name} has {site.scheduler}"
    if wireup != "mpich" and wireup not in site.mpi.pmi:
        return f"srun at {site.name} is not known to have {wireup} (known: {known})"
    return ""


def misfit(image: PlannedImage, wireup: Wireup) -> Misfit | None:
    """Why ranks in this image cannot meet by an MPI wireup; None if nothing is known against it."""
    if image.mpi == "none":
        return Misfit("image-without-mpi", f"Horovod in {image.reference} has no MPI")
    mpi = Mpi() if image.about is None else image.about.mpi
    name = f"{mpi.flavour or image.mpi} {mpi.version}".strip()
    if wireup == "mpich" and (image.mpi == "openmpi" or (mpi.abi and mpi.abi != MPICH_LIBRARY)):
        linked = f", and Horovod is linked to {mpi.abi}" if mpi.abi else ""
        return Misfit(
            "mpi-abi-mismatch",
            f"the host's MPI replaces the image's by MPICH's ABI ({MPICH_LIBRARY}), and the image has {name}{linked}",
        )
    if wireup != "mpich" and mpi.flavour and not _takes(mpi, wireup):
        return Misfit("pmi-not-in-image", f"srun starts ranks by {wireup}, and the image's {name} takes {pmi_of(mpi)}")
    return None


def pmi_of(mpi: Mpi) -> str:
    """``pmi1, pmix``: for people."""
    return ", ".join(mpi.pmi) or "no PMI"


def _takes(mpi: Mpi, wireup: Wireup) -> bool:
    # Slurm's plugin pmi2 answers both protocols on its file descriptor (Slurm, src/plugins/mpi/pmi2/pmi1.c).
    return wireup in mpi.pmi or (wireup == "pmi2" and mpi.flavour == "mpich" and "pmi1" in mpi.pmi)


def _started_by(wireup: Wireup) -> Choice:
    return Choice(wireup, None if wireup == "mpich" else wireup)
