"""How ranks find each other: what is chosen, and what is refused with its reason."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from runner.backends.runtimes import runtime
from runner.backends.schedulers import render
from runner.checks.registry import Observed, check
from runner.core.errors import RefusedError
from runner.model.image import Horovod, ImageFacts, Mpi
from runner.model.plan import PlannedImage
from runner.model.request import Request
from runner.model.site import MpiFacts, Site
from runner.model.step import text, texts
from runner.planning.plan import plan
from runner.planning.wireup import Choice, choose, mesh_s
from runner.preparation.choices import mpi_of
from runner.sites.loader import read_site
from tests.support.plans import PROGRAM


def image(mpi: Any = "") -> PlannedImage:
    return PlannedImage("i", "", "/i", mpi=mpi)


def mpi_only(flavour: str = "openmpi", pmi: tuple[str, ...] = ("pmix",)) -> PlannedImage:
    """Of a Horovod without Gloo: of a site's modules, or of an image that brings its own."""
    about = ImageFacts(mpi=Mpi(flavour=flavour, pmi=pmi), horovod=Horovod(controllers=("MPI",)))
    return PlannedImage("theirs", "", "/i", mpi=mpi_of(about), about=about)


NONE, OPEN_MPI, MPICH = image(), image("openmpi"), image("mpich")
TECHNION, POLARIS, ALPHA = read_site("technion"), read_site("polaris"), read_site("alpha")
PMIX = msgspec.structs.replace(TECHNION, mpi=MpiFacts(pmi=("pmix",)))
PROVEN = msgspec.structs.replace(PMIX, proven={"pyxis/pmix": "2026-11-21"})
RENDEZVOUS, BY_PMIX = Choice("rendezvous", "none"), Choice("pmix", "pmix")


@pytest.mark.parametrize(
    ("site", "mpi", "runtime_name", "requested", "ranks", "chosen"),
    [
        (TECHNION, OPEN_MPI, "pyxis", None, 16, RENDEZVOUS),  # which needs no MPI
        (read_site("perlmutter"), OPEN_MPI, "pyxis", None, 16, Choice("rendezvous", None)),
        (POLARIS, OPEN_MPI, "pyxis", None, 16, RENDEZVOUS),
        (PROVEN, OPEN_MPI, "pyxis", None, 65, BY_PMIX),  # above 64 ranks, where it is proven
        (PROVEN, OPEN_MPI, "pyxis", None, 64, RENDEZVOUS),
        (PROVEN, OPEN_MPI, "enroot", None, 65, RENDEZVOUS),
        (PROVEN, NONE, "pyxis", None, 65, RENDEZVOUS),
        (PMIX, OPEN_MPI, "pyxis", None, 65, RENDEZVOUS),
        (PROVEN, image("none"), "pyxis", None, 65, RENDEZVOUS),
        (PROVEN, OPEN_MPI, "pyxis", "rendezvous", 65, RENDEZVOUS),
        (PMIX, NONE, "pyxis", "pmix", 16, BY_PMIX),  # what is requested, and not known to fail
        (POLARIS, MPICH, "apptainer", "mpich", 16, Choice("mpich", None)),
        (POLARIS, OPEN_MPI, "apptainer", "torchrun", 512, Choice("torchrun", "none")),
        (ALPHA, mpi_only(), "native", None, 16, RENDEZVOUS),  # a program of another framework
    ],
)
def test_the_rendezvous_is_the_default_and_mpi_is_chosen_where_it_is_proven(
    site: Site, mpi: PlannedImage, runtime_name: str, requested: Any, ranks: int, chosen: Choice
) -> None:
    assert choose(site, mpi, runtime_name, requested, ranks) == chosen


@pytest.mark.parametrize(
    ("theirs", "requested", "ranks", "wireup"),
    [(mpi_only(), None, 16, "pmix"), (mpi_only(), "pmix", 16, "pmix"), (mpi_only(), None, 1, "rendezvous"),
     (OPEN_MPI, None, 16, "rendezvous")],
)  # fmt: skip
def test_a_horovod_without_gloo_meets_by_mpi_and_never_as_worlds_of_one(
    theirs: PlannedImage, requested: Any, ranks: int, wireup: str
) -> None:
    assert choose(ALPHA, theirs, "native", requested, ranks, gloo_needed=True).wireup == wireup


@pytest.mark.parametrize(
    ("site", "theirs", "requested", "says", "fix"),
    [
        ("slurm", OPEN_MPI, "pmix", "not known to have pmix", "rendezvous"),
        ("perlmutter", OPEN_MPI, "pmix", "known: pmi2", "rendezvous"),
        ("polaris", MPICH, "pmix", "plugin of srun", "rendezvous"),
        ("technion", MPICH, "mpich", "MPICH's ABI", "rendezvous"),
        ("alpha", mpi_only(), "rendezvous", "has no Gloo", "--wireup pmix"),
        ("alpha", mpi_only(pmi=("pmi2",)), None, "takes pmi2", "env create"),
        ("slurm", mpi_only(), None, "not known to have pmix", "runner build"),
        ("polaris", mpi_only(), None, "MPICH's ABI", "runner build"),
    ],
)
def test_ranks_that_cannot_meet_are_refused(
    site: str, theirs: PlannedImage, requested: Any, says: str, fix: str
) -> None:
    with pytest.raises(RefusedError) as caught:
        choose(read_site(site), theirs, "native", requested, 16, gloo_needed=True)
    assert says in caught.value.what
    assert fix in caught.value.fix


OTHER = msgspec.structs.replace(PROGRAM, framework="none")


def test_a_program_with_processes_of_its_own_is_one_task_with_all_gpus_of_a_node() -> None:
    recipe = msgspec.structs.replace(OTHER, processes="own")
    planned = plan(recipe, ALPHA, Request(gpus=8), NONE)
    assert (planned.tasks_per_node, planned.gpus_per_node, planned.cpus_per_task) == ((1,), 8, 40)
    assert not check(planned, ALPHA, Observed())
    command = runtime("singularity").step(planned).command
    assert texts("--wireup", "own", "--gpus", "8", "--") == command[command.index(text("--wireup")) :][:5]
    assert plan(recipe, ALPHA, Request(gpus=16), NONE).tasks_per_node == (1, 1)
    with pytest.raises(RefusedError, match="3 GPUs cannot be split evenly over 2 nodes") as caught:
        plan(recipe, ALPHA, Request(gpus=3, nodes=2), NONE)
    assert "--gpus 4" in caught.value.fix


def test_torchruns_variables_are_the_launchers_to_set() -> None:
    planned = plan(OTHER, TECHNION, Request(gpus=16, wireup="torchrun"), NONE)
    command = runtime("pyxis").step(planned).command
    assert command[command.index(text("--wireup")) + 1] == text("torchrun")
    assert not check(planned, TECHNION, Observed())


@pytest.mark.parametrize(("bind", "said"), [("auto", False), ("none", True)])
def test_ranks_are_bound_unless_that_is_not_wanted_and_the_script_says_so(bind: Any, said: bool) -> None:
    planned = plan(PROGRAM, TECHNION, Request(gpus=16, bind=bind), NONE)
    assert planned.bind == bind
    assert ("--bind none" in render(planned, runtime("pyxis").step(planned)).text) is said


def test_the_meshs_cost_is_the_measured_one_and_goes_on_beyond() -> None:
    for ranks, seconds in ((16, 0.05), (64, 0.6), (128, 2.8), (256, 12.3), (512, 65.0)):
        assert mesh_s(ranks) == pytest.approx(seconds)
        assert mesh_s(ranks - 1) < seconds < mesh_s(ranks + 1)
    assert 4 < mesh_s(1024) / mesh_s(512) < 8
    assert 0 < mesh_s(2) < 0.05
