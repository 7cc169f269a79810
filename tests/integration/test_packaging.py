"""What is released is what the checkout is: built, installed in an empty environment, and run from ``/``."""

import os
import re
import shutil
import stat
import sys
from pathlib import Path

import pytest

from runner.core import paths
from runner.images.building.build import BuiltImage
from tests.support.commands import Runner, ran
from tests.support.documents import result
from tests.support.installed import (
    CHECKOUT,
    TIMEOUT_S,
    Distributions,
    Installed,
    build,
    check_everyday_verbs,
    install,
    kept_files,
    names,
)
from tests.support.package_directories import wheel
from tests.support.users import ALICE, AS_ROOT, BOB, become, open_directory

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> Distributions:
    return build(tmp_path_factory.mktemp("distributions"))


@pytest.fixture(scope="module")
def installed(distributions: Distributions, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """The wheel under the Python that runs the tests; all others: tests/long/faults."""
    return install(distributions.wheel, sys.executable, tmp_path_factory.mktemp("installed"))


def test_the_wheel_holds_the_package_containers_recipes_and_docs_and_nothing_else(distributions: Distributions) -> None:
    inside = {name for name in names(distributions.wheel) if ".dist-info/" not in name}
    parts = ("containers", "recipes", "docs", "pyproject.toml", "requirements.lock", "README.md")
    shared = {f"runner/_share/{name}" for name in kept_files(*parts)}
    assert inside == kept_files("runner", "gpu_runner.py") | shared


def test_the_sdist_holds_what_the_wheel_is_made_of_and_nothing_else(distributions: Distributions) -> None:
    parts = (
        "runner",
        "gpu_runner.py",
        "containers",
        "recipes",
        "docs",
        "LICENSE",
        "README.md",
        "pyproject.toml",
        "requirements.lock",
        ".gitignore",
    )
    assert set(names(distributions.sdist)) == kept_files(*parts) | {"PKG-INFO"}
    assert names(distributions.wheel_of_sdist) == names(distributions.wheel)


def test_what_every_user_needs_works_from_the_root_directory(installed: Installed, tmp_path: Path) -> None:
    check_everyday_verbs(installed, tmp_path)


def test_a_runner_of_the_users_own_is_not_run_instead(installed: Installed, tmp_path: Path) -> None:
    for own in ("runner.py", "runner/__init__.py"):
        (tmp_path / own).parent.mkdir(exist_ok=True)
        (tmp_path / own).write_text("raise SystemExit('mine')\n")
    assert installed("--version", code=0, PYTHONPATH=str(tmp_path)).startswith("gpu-runner, version ")


def test_the_installed_build_makes_the_very_image_of_the_checkout(
    installed: Installed, horovod_image: BuiltImage
) -> None:
    """An image is known by a hash of all that goes into it: files, their contents, their right to be executed."""
    said = installed("build", "pytorch", "--base", "standin", "--json", code=0, RUNNER_CACHE=str(paths.cache_dir()))
    built = result(said)
    assert (built["up_to_date"], built["digest"]) == (True, horovod_image.digest)


def test_an_installed_runner_submits_to_the_box(installed: Installed, runner: Runner, tmp_path: Path) -> None:
    """Launcher and recipe come out of the wheel into the run directory, and the ranks meet."""
    cache = {"RUNNER_CACHE": str(paths.cache_dir()), "RUNNER_STATE": str(tmp_path / "state")}
    words = ("submit", "--recipe", "probe", "--gpus", "2", "--site", runner.site, "--runs", tmp_path / "runs", "--wait")
    assert "verdict: ran" in installed(*words, code=0, **cache)


def test_the_pages_make_a_site_with_search_and_a_broken_link_makes_none(tmp_path: Path) -> None:
    """Nothing of it is fetched from elsewhere."""
    for name in (name for name in kept_files() if name.startswith(("docs/", "runner/setup/")) or name.endswith(".md")):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(CHECKOUT / name, tmp_path / name)
    words = ("sh", "runner/setup/pages/build.sh", sys.executable)
    ran(words, cwd=tmp_path, timeout_s=TIMEOUT_S)
    site = tmp_path / "build/pages/site"
    assert "rendezvous" in (site / "search/search_index.json").read_text()
    for page in ("docs/index.html", "docs/jobs.html", "CONTRIBUTING.html"):
        assert not re.findall(
            r"""<(?:script|img|link rel="stylesheet")[^>]*(?:src|href)="https?:""", (site / page).read_text()
        )
    with (tmp_path / "docs/jobs.md").open("a") as file:
        file.write("\n[Nothing](scale.md#no-such-heading)\n")
    assert "no-such-heading" in ran(words, code=1, cwd=tmp_path, timeout_s=TIMEOUT_S).err


def test_where_its_packages_cannot_be_had_nothing_is_installed(tmp_path: Path) -> None:
    offline = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(tmp_path), "PIP_CONFIG_FILE": os.devnull}
    environment = {"PATH": os.environ["PATH"], "PREFIX": f"{tmp_path}/opt", "PYTHON": sys.executable, **offline}
    refused = ran(("sh", "runner/setup/install.sh"), code=3, cwd=CHECKOUT, env=environment).err
    assert "could not be fetched\n  fix:   PIP_INDEX_URL=URL" in refused
    assert [each.name for each in (tmp_path / "opt").iterdir()] == ["modulefiles"]


@AS_ROOT
def test_an_administrators_installation_serves_every_user_when_the_checkout_is_gone() -> None:
    with open_directory() as place:
        checkout, prefix = place / "checkout", place / "opt"
        needed = ("Makefile", "pyproject.toml", "requirements.lock", "README.md", "LICENSE")
        for name in kept_files("runner", "gpu_runner.py", "containers", "recipes", "docs", *needed):
            (checkout / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(CHECKOUT / name, checkout / name, follow_symlinks=False)
        words = ("sh", "-c", "umask 077; exec make install PREFIX=$1 PYTHON=$2", "sh", prefix, sys.executable)
        name, raw = wheel("click", "8.999")  # a place that a setting of pip's names, and others write to
        (place / name).write_bytes(raw)
        environment = os.environ | {"PIP_FIND_LINKS": f"{os.environ.get('PIP_FIND_LINKS', '')} {place}".strip()}
        assert "module load gpu-runner/" in ran(words, cwd=checkout, env=environment, timeout_s=TIMEOUT_S).out
        packages = ran((*prefix.glob("*/python/bin/python"), "-m", "pip", "list")).out
        assert "click " in packages and "8.999" not in packages, "only what has the hashes of the lock"
        assert "is there already" in ran(words, code=2, cwd=checkout).err
        shutil.rmtree(checkout)
        (target,) = (each for each in prefix.iterdir() if each.name != "modulefiles")
        assert f"prepend-path PATH {target}/bin\n" in (prefix / "modulefiles/gpu-runner" / target.name).read_text()
        assert "_gpu_runner_completion" in (target / "share/bash-completion/completions/gpu-runner").read_text()
        assert [each.name for each in (target / "bin").iterdir()] == ["gpu-runner"], "no python beside the user's own"
        closed = [each for each in prefix.rglob("*") if not each.stat().st_mode & stat.S_IROTH]
        assert not closed
        for uid in (ALICE, BOB):
            user = (*become(uid, reads=True), target / "bin/gpu-runner", "--version")  # reads: this Python, of a home
            assert target.name in ran(user, cwd="/", env={"PATH": "/usr/bin:/bin", "HOME": str(place)}).out
            assert "Permission denied" in ran((*become(uid), "touch", target / "x"), code=1).err
        (place / "gpu_runner.py").write_text("print('a stranger's')\n")
        env = {"PATH": "/usr/bin:/bin", "HOME": str(place), "PYTHONPATH": ":/opt/x"}
        for begun in ((target / "bin/gpu-runner",), (target / "python/bin/python", "-I", "-m", "runner")):
            shown = ran((*begun, "--version"), cwd=place, env=env).out
            assert target.name in shown and "stranger" not in shown
