"""Where a job's caches are, by what its programs see of the user's home directory."""

from __future__ import annotations

import msgspec
import pytest

from runner.backends.runtimes import runtime as module_of
from runner.model.plan import PlannedImage
from runner.model.request import Mount, Recipe, Request
from runner.model.site import Home
from runner.planning import environment
from runner.planning.plan import plan
from runner.sites.loader import read_site

HOME = Mount("/home/me", "/home/me")
ABOVE = Mount("/home", "/home/")
OTHER = Mount("/home/me", "/data")
RECIPE = Recipe(name="r", description="", image="i", program=("p",))


@pytest.mark.parametrize(
    ("site", "runtime", "mounts", "where"),
    [
        ("technion", "pyxis", (), "node"),
        ("technion", "pyxis", (HOME,), "home"),
        ("technion", "pyxis", (ABOVE,), "home"),
        ("technion", "pyxis", (OTHER,), "node"),
        ("technion", "pyxis", (Mount("/home/me", "/home/me", read_only=True),), "node"),
        ("neuron", "singularity", (), "node"),
        ("neuron", "native", (), "home"),
        ("perlmutter", "shifter", (), "home"),
        ("perlmutter", "podman-hpc", (), "node"),
        ("local", "native", (), "shell"),
        ("local", "charliecloud", (), "node"),
    ],
)
def test_caches_are_at_home_where_programs_see_it(
    site: str, runtime: str, mounts: tuple[Mount, ...], where: str
) -> None:
    assert environment.choose_caches(read_site(site), runtime, mounts, "/home/me") == where


def test_a_home_that_is_not_for_jobs_holds_no_caches() -> None:
    site = msgspec.structs.replace(read_site("neuron"), home=Home(for_jobs=False))
    assert environment.choose_caches(site, "native", (), "/home/me") == "node"


@pytest.mark.parametrize(
    ("runtime", "mounts", "names"),
    [
        ("native", (), {"HF_HOME", "TORCH_HOME"}),
        ("pyxis", (Mount("/scratch", "/scratch"),), {"HF_HOME"}),
        ("pyxis", (), set()),
    ],
)
def test_the_shells_own_caches_are_kept_where_programs_see_them(
    runtime: str, mounts: tuple[Mount, ...], names: set[str]
) -> None:
    shell = {"HF_HOME": "/scratch/me/hf", "TORCH_HOME": "/home/me/torch", "KERAS_HOME": "relative", "HF_TOKEN": "/x"}
    assert environment.carried_caches(shell, runtime, mounts).keys() == names


def test_a_job_has_the_users_umask_and_caches() -> None:
    request = Request(gpus=8, umask=0o27, mounts=(Mount("/scratch", "/scratch"),), caches=(("HF_HOME", "/scratch/hf"),))
    planned = plan(RECIPE, read_site("technion"), request, PlannedImage("i:1", "", "/store/x.sqsh"))
    assert (planned.umask, planned.caches, dict(planned.env)["HF_HOME"]) == (0o27, "node", "/scratch/hf")
    command = [part for word in module_of("pyxis").step(planned).command for part in word]
    values = [getattr(part, "value", "") for part in command]
    assert values[values.index("--umask") + 1] == "027"
    assert values[values.index("--caches") + 1] == "node"
