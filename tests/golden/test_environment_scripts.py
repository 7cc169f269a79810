"""Whole scripts that make and prove environments for jobs without a container. As test_scripts.py."""

import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path, PurePath
from typing import Any

import pytest

from runner.environments.script import (
    REQUIREMENTS,
    EnvironmentSpec,
    Places,
    collection,
    creation,
    environment_spec,
    packages_of_images,
    packages_of_site,
    proof,
    setup_of_jobs,
)
from runner.model.image import Activate, Setup
from runner.sites.loader import names, read_site
from runner.sites.user import expand_placeholders
from tests.support.golden_jobs import ELVIS

SCRIPTS = Path(__file__).parent / "environment_scripts"
AT = PurePath("/scratch/e/elvis/gpu-runner/environments")
HOSTILE = "it's $HOME `id` #;*"


def places(name: str, at: PurePath = AT) -> Places:
    return Places(
        environment=at / name / "made",
        work=at / name / "work",
        caches=at / ".caches",
        wheels=PurePath("/home/elvis/.cache/gpu-runner/wheels"),
        programs=PurePath("/home/elvis/gpu-runner/containers/horovod"),
        lock=at / name / "building",
    )


def at_site(site: str, **asked: Any) -> str:
    return creation(
        environment_spec(expand_placeholders(read_site(site), ELVIS), "horovod", **asked), places("horovod")
    )


def hostile() -> str:
    setup = Setup(use=(f"/m/{HOSTILE}",), modules=(HOSTILE,), activate=Activate(conda=HOSTILE))
    wanted = EnvironmentSpec(
        "x", "virtualenv", "tensorflow", setup, (f"torch @ file:///{HOSTILE}",), "none", f"/n/{HOSTILE}"
    )
    return creation(wanted, places(HOSTILE, AT / HOSTILE))


def checked() -> str:
    way = expand_placeholders(read_site("perlmutter"), ELVIS).ways["native"]
    wanted = EnvironmentSpec("horovod", way.kind, "pytorch", way.setup, ())
    return proof(setup_of_jobs(wanted, str(AT / "horovod/made")), "pytorch", places("x").programs, env={}, mpi="mpich")


CASES: dict[str, Callable[[], str]] = {
    "local-virtualenv": lambda: creation(
        EnvironmentSpec("horovod", "virtualenv", "pytorch", Setup(), REQUIREMENTS["pytorch", "cpu"]), places("horovod")
    ),
    "perlmutter-conda": lambda: at_site("perlmutter"),
    "neuron-conda-installed": lambda: creation(
        environment_spec(expand_placeholders(read_site("neuron"), ELVIS), "horovod", channels=("conda-forge",)),
        replace(places("horovod"), installer=PurePath(f"/scratch/e/elvis/{HOSTILE}.sh")),
    ),
    "alpha-virtualenv": lambda: at_site("alpha"),
    "neuron-conda": lambda: at_site("neuron"),
    "polaris-virtualenv": lambda: at_site("polaris"),
    "polaris-modules": lambda: at_site("polaris", kind="modules"),
    "hostile-virtualenv": hostile,
    "perlmutter-check": checked,
    "hostile-packages": lambda: creation(
        EnvironmentSpec("x", "virtualenv", "pytorch", Setup(), ("torch==2.13.0",), packages="identity"),
        replace(places(HOSTILE, AT / HOSTILE), packages=AT / HOSTILE / "wheéls"),
    ),
    "polaris-collection": lambda: collection(
        packages_of_site(expand_placeholders(read_site("polaris"), ELVIS)), AT / HOSTILE, places("x").programs
    ),
    "polaris-collection-for-images": lambda: collection(
        packages_of_images(read_site("polaris"), "tensorflow", "aarch64"), AT / "packages", places("x").programs
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_the_script_is_the_golden_one(name: str, pytestconfig: pytest.Config) -> None:
    golden = SCRIPTS / f"{name}.sh"
    if pytestconfig.getoption("--update-goldens"):
        golden.write_text(CASES[name]())
    assert CASES[name]() == golden.read_text()


def test_no_golden_is_left_over() -> None:
    assert {path.stem for path in SCRIPTS.iterdir()} == set(CASES)


def test_every_site_that_runs_natively_has_a_golden_script() -> None:
    native = {name for name in names() if "native" in read_site(name).ways}
    assert native <= {name.partition("-")[0] for name in CASES}


@pytest.mark.parametrize("name", CASES)
def test_bash_and_shellcheck_take_it(name: str) -> None:
    golden = SCRIPTS / f"{name}.sh"
    assert subprocess.run(["bash", "-n", golden], capture_output=True, check=False).returncode == 0
    # SC2016, SC1091: as in test_scripts.py. SC1090: what is sourced is not here.
    words = ["shellcheck", "--shell=bash", "--exclude=SC2016,SC1091,SC1090", str(golden)]
    checked = subprocess.run(words, capture_output=True, text=True, check=False)
    assert checked.stdout == ""
    assert checked.returncode == 0
