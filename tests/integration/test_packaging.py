"""What is released is what the checkout is: built, installed in an empty environment, and run from ``/``."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from runner import paths
from runner.images.build.build import BuiltImage
from tests.support.commands import Runner
from tests.support.installed import CHECKOUT, Distributions, Installed, build, install, kept_files, names

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> Distributions:
    """Of this checkout."""
    return build(tmp_path_factory.mktemp("distributions"))


@pytest.fixture(scope="module")
def installed(distributions: Distributions, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """The wheel under the Python that runs the tests; all others: tests/long/faults."""
    return install(distributions.wheel, sys.executable, tmp_path_factory.mktemp("installed"))


def test_the_wheel_holds_the_package_containers_and_recipes_and_nothing_else(distributions: Distributions) -> None:
    inside = {name for name in names(distributions.wheel) if ".dist-info/" not in name}
    shared = {f"runner/_share/{name}" for name in kept_files("containers", "recipes")}
    assert inside == kept_files("runner") | shared


def test_the_sdist_holds_what_the_wheel_is_made_of_and_nothing_else(distributions: Distributions) -> None:
    parts = ("runner", "containers", "recipes", "LICENSE", "README.md", "pyproject.toml", ".gitignore")
    assert set(names(distributions.sdist)) == kept_files(*parts) | {"PKG-INFO"}
    assert names(distributions.wheel_of_sdist) == names(distributions.wheel)


def test_what_every_user_needs_works_from_the_root_directory(installed: Installed, tmp_path: Path) -> None:
    check_everyday_verbs(installed, tmp_path)


def check_everyday_verbs(installed: Installed, directory: Path) -> None:
    """Help, sites, a script that is the checkout's to the byte, and an error of a verb that needs containers/."""
    assert "submit" in installed("--help", code=0)
    assert "technion" in installed("site", "list", code=0)
    image = directory / "an image.sqsh"
    image.write_bytes(b"hsqs" + bytes(24) + b"\4" + bytes(67))
    words = ["submit", "--gpus", "13", "--site", "technion", "--dry-run"]
    words += ["--image", str(image), "--runs", str(directory)]
    for recipe in ("horovod-pytorch", "probe"):
        assert installed(*words, "--recipe", recipe, code=0) == of_the_checkout(*words, "--recipe", recipe)
    assert installed("build", "pytorch", "--engine", "unix:///nowhere.sock", code=8) == ""


def of_the_checkout(*words: str) -> str:
    """What the same command prints from here."""
    here = Installed(Path(sys.executable).parent, Path.home())
    program = f"import sys; sys.path.insert(0, {str(CHECKOUT)!r}); from runner.cli import main; main({list(words)!r})"
    return here.python(program)


def test_the_installed_build_makes_the_very_image_of_the_checkout(
    installed: Installed, horovod_image: BuiltImage
) -> None:
    """An image is known by a hash of all that goes into it: files, their contents, their right to be executed."""
    said = installed("build", "pytorch", "--base", "standin", "--json", code=0, RUNNER_CACHE=str(paths.cache_dir()))
    built = json.loads(said)
    assert (built["up_to_date"], built["digest"]) == (True, horovod_image.digest)


def test_an_installed_runner_submits_to_the_box(installed: Installed, runner: Runner, tmp_path: Path) -> None:
    """Launcher and recipe come out of the wheel into the run directory, and the ranks meet."""
    cache = {"RUNNER_CACHE": str(paths.cache_dir()), "RUNNER_STATE": str(tmp_path / "state")}
    words = ("submit", "--recipe", "probe", "--gpus", "2", "--site", runner.site, "--runs", tmp_path / "runs", "--wait")
    assert "verdict: ran" in installed(*words, code=0, **cache)
