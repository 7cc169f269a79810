"""How ranks find each other: what is chosen, and what is refused with its reason."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from runner.checks.rules import Observed, check
from runner.errors import RefusedError
from runner.model.plan import PlannedImage
from runner.model.recipe import Recipe
from runner.model.request import Request
from runner.model.site import MpiFacts, Site
from runner.model.step import text, texts
from runner.planning.plan import plan
from runner.planning.wireup import Choice, choose
from runner.runtimes import runtime
from runner.sites.loader import read_site


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
        (read_site("technion"), "openmpi", "pmix", "not known to have pmix"),
        (read_site("perlmutter"), "openmpi", "pmix", "known: pmi2"),
        (read_site("polaris"), "mpich", "pmix", "plugin of srun"),
        (read_site("technion"), "mpich", "mpich", "MPICH's ABI"),
    ],
)
def test_what_a_site_cannot_do_is_refused(site: Site, mpi: str, asked: Any, says: str) -> None:
    with pytest.raises(RefusedError) as caught:
        choose(site, image(mpi), "pyxis", asked, 16)
    assert says in caught.value.what
    assert "rendezvous" in caught.value.mend


def test_what_is_asked_for_and_not_known_to_fail_is_done() -> None:
    assert choose(pmix_site(), image(), "pyxis", "pmix", 16) == Choice("pmix", "pmix")
    assert choose(read_site("polaris"), image("mpich"), "apptainer", "mpich", 16) == Choice("mpich", None)


def test_a_program_with_processes_of_its_own_is_one_task_with_all_gpus_of_a_node() -> None:
    recipe = Recipe(name="r", description="", image="i", program=("p",), processes="own")
    planned = plan(recipe, read_site("alpha"), Request(gpus=8), image())
    assert (planned.tasks_per_node, planned.gpus_per_node, planned.cpus_per_task) == ((1,), 8, 48)
    assert not check(planned, read_site("alpha"), Observed())
    command = runtime("singularity").step(msgspec.structs.replace(planned, image=image())).command
    assert texts("--wireup", "own", "--bind", "none") == command[command.index(text("--wireup")) :][:4]
    with pytest.raises(RefusedError) as caught:
        plan(recipe, read_site("alpha"), Request(gpus=16), image())
    assert "one node only" in caught.value.what
