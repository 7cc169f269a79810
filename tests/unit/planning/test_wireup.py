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
from runner.model.request import Recipe, Request
from runner.model.site import MpiFacts, Site
from runner.model.step import text, texts
from runner.planning.plan import plan
from runner.planning.wireup import Choice, choose, mesh_s
from runner.preparation.choices import mpi_of
from runner.sites.loader import read_site

RECIPE = Recipe(name="r", description="", image="i", program=("p",))


def image(mpi: Any = "") -> PlannedImage:
    return PlannedImage("i", "", "/i", mpi=mpi)


def pmix_site(**changes: Any) -> Site:
    return msgspec.structs.replace(read_site("technion"), mpi=MpiFacts(pmi=("pmix",)), **changes)


@pytest.mark.parametrize(("site", "mpi"), [("technion", "none"), ("perlmutter", None), ("polaris", "none")])
def test_the_rendezvous_needs_no_mpi_and_is_the_default(site: str, mpi: str | None) -> None:
    assert choose(read_site(site), image("openmpi"), "pyxis", None, 16) == Choice("rendezvous", mpi)


def test_above_64_ranks_mpi_is_chosen_only_where_it_is_proven() -> None:
    proven = pmix_site(proven={"pyxis/pmix": "2026-11-21"})
    assert choose(proven, image("openmpi"), "pyxis", None, 65) == Choice("pmix", "pmix")
    assert choose(proven, image("openmpi"), "pyxis", None, 64).wireup == "rendezvous"
    assert choose(proven, image("openmpi"), "enroot", None, 65).wireup == "rendezvous"
    assert choose(proven, image(), "pyxis", None, 65).wireup == "rendezvous"
    assert choose(pmix_site(), image("openmpi"), "pyxis", None, 65).wireup == "rendezvous"
    assert choose(proven, image("none"), "pyxis", None, 65).wireup == "rendezvous"
    assert choose(proven, image("openmpi"), "pyxis", "rendezvous", 65).wireup == "rendezvous"


@pytest.mark.parametrize(
    ("site", "mpi", "asked", "says"),
    [
        (read_site("slurm"), "openmpi", "pmix", "not known to have pmix"),
        (read_site("perlmutter"), "openmpi", "pmix", "known: pmi2"),
        (read_site("polaris"), "mpich", "pmix", "plugin of srun"),
        (read_site("technion"), "mpich", "mpich", "MPICH's ABI"),
    ],
)
def test_what_a_site_cannot_do_is_refused(site: Site, mpi: str, asked: Any, says: str) -> None:
    with pytest.raises(RefusedError) as caught:
        choose(site, image(mpi), "pyxis", asked, 16)
    assert says in caught.value.what
    assert "rendezvous" in caught.value.fix


def test_what_is_requested_and_not_known_to_fail_is_done() -> None:
    assert choose(pmix_site(), image(), "pyxis", "pmix", 16) == Choice("pmix", "pmix")
    assert choose(read_site("polaris"), image("mpich"), "apptainer", "mpich", 16) == Choice("mpich", None)


def mpi_only(flavour: str = "openmpi", pmi: tuple[str, ...] = ("pmix",)) -> PlannedImage:
    about = ImageFacts(mpi=Mpi(flavour=flavour, pmi=pmi), horovod=Horovod(controllers=("MPI",)))
    return PlannedImage("theirs", "", "/i", mpi=mpi_of(about), about=about)


def test_a_horovod_without_gloo_meets_by_mpi_and_never_as_worlds_of_one() -> None:
    """Of a site's modules, or of an image that brings its own."""
    alpha = read_site("alpha")
    assert choose(alpha, mpi_only(), "native", None, 16, gloo_needed=True) == Choice("pmix", "pmix")
    assert choose(alpha, mpi_only(), "native", "pmix", 16, gloo_needed=True) == Choice("pmix", "pmix")
    assert choose(alpha, mpi_only(), "native", None, 1, gloo_needed=True).wireup == "rendezvous"
    assert choose(alpha, mpi_only(), "native", None, 16).wireup == "rendezvous", "a program of another framework"
    assert choose(alpha, image("openmpi"), "native", None, 16, gloo_needed=True).wireup == "rendezvous"


@pytest.mark.parametrize(
    ("site", "theirs", "asked", "says", "fix"),
    [
        ("alpha", mpi_only(), "rendezvous", "has no Gloo", "--wireup pmix"),
        ("alpha", mpi_only(pmi=("pmi2",)), None, "takes pmi2", "env create"),
        ("slurm", mpi_only(), None, "not known to have pmix", "runner build"),
        ("polaris", mpi_only(), None, "MPICH's ABI", "runner build"),
    ],
)
def test_a_horovod_without_gloo_that_cannot_meet_is_refused(
    site: str, theirs: PlannedImage, asked: Any, says: str, fix: str
) -> None:
    with pytest.raises(RefusedError) as caught:
        choose(read_site(site), theirs, "native", asked, 16, gloo_needed=True)
    assert says in caught.value.what
    assert fix in caught.value.fix


def test_a_program_with_processes_of_its_own_is_one_task_with_all_gpus_of_a_node() -> None:
    recipe = Recipe(name="r", description="", image="i", program=("p",), framework="none", processes="own")
    planned = plan(recipe, read_site("alpha"), Request(gpus=8), image())
    assert (planned.tasks_per_node, planned.gpus_per_node, planned.cpus_per_task) == ((1,), 8, 48)
    assert not check(planned, read_site("alpha"), Observed())
    command = runtime("singularity").step(msgspec.structs.replace(planned, image=image())).command
    assert texts("--wireup", "own", "--gpus", "8", "--") == command[command.index(text("--wireup")) :][:5]
    assert plan(recipe, read_site("alpha"), Request(gpus=16), image()).tasks_per_node == (1, 1)
    with pytest.raises(RefusedError) as caught:
        plan(recipe, read_site("alpha"), Request(gpus=3, nodes=2), image())
    assert "3 GPUs cannot be split evenly over 2 nodes" in caught.value.what
    assert "--gpus 4" in caught.value.fix


def test_torchruns_variables_need_no_mpi_anywhere() -> None:
    assert choose(read_site("polaris"), image("openmpi"), "apptainer", "torchrun", 512) == Choice("torchrun", "none")
    recipe = msgspec.structs.replace(RECIPE, framework="none")
    planned = plan(recipe, read_site("technion"), Request(gpus=16, wireup="torchrun"), image())
    command = runtime("pyxis").step(planned).command
    assert command[command.index(text("--wireup")) + 1] == text("torchrun")
    assert not check(planned, read_site("technion"), Observed())


def test_ranks_are_bound_unless_that_is_not_wanted_and_the_script_says_so() -> None:
    for asked, said in (("auto", False), ("none", True)):
        planned = plan(RECIPE, read_site("technion"), Request(gpus=16, bind=asked), image())  # type: ignore[arg-type]
        assert planned.bind == asked
        assert ("--bind none" in render(planned, runtime("pyxis").step(planned)).text) is said


@pytest.mark.parametrize(("ranks", "seconds"), [(16, 0.05), (64, 0.6), (128, 2.8), (256, 12.3), (512, 65.0)])
def test_the_meshs_cost_is_the_measured_one(ranks: int, seconds: float) -> None:
    assert mesh_s(ranks) == pytest.approx(seconds)
    assert mesh_s(ranks - 1) < seconds < mesh_s(ranks + 1)


def test_the_meshs_cost_goes_on_beyond_what_was_measured() -> None:
    assert 4 < mesh_s(1024) / mesh_s(512) < 8
    assert 0 < mesh_s(2) < 0.05
