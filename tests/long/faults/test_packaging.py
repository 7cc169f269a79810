"""The wheel under every Python that this machine has of those we support, and the box from an installed wheel."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from runner.core import paths
from tests.support.installed import Distributions, build, check_everyday_verbs, install, pythons

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> Distributions:
    """Of this checkout."""
    return build(tmp_path_factory.mktemp("distributions"))


@pytest.mark.parametrize("python", pythons())
def test_the_wheel_works_under(python: str, distributions: Distributions, tmp_path: Path) -> None:
    installed = install(distributions.wheel_of_sdist, python, tmp_path)
    check_everyday_verbs(installed, tmp_path)
    cache = {"RUNNER_CACHE": str(paths.cache_dir())}
    name = f"wheel-{os.getpid()}"
    try:
        assert f"box {name} is up" in installed("box", "up", "--name", name, code=0, **cache)
    finally:
        installed("box", "down", "--name", name, code=0, **cache)
    assert "every package is installed" in installed("quickstart", "--only-prepare", code=0, **cache)
