"""An image that is really built, every step of it run, by a user whose environment and engine login hold secrets."""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import docker
import pytest

from runner.core import paths
from runner.images.building.build import BuiltImage
from tests.support import planted_secrets
from tests.support.documents import result
from tests.support.installed import Distributions, build, check_everyday_verbs, install, pythons
from tests.support.planted_secrets import MARK, careless, verb

pytestmark = pytest.mark.integration


@pytest.fixture
def fresh_base(engine_client: docker.DockerClient, horovod_image: BuiltImage) -> Iterator[str]:
    """The stand-in base under another id, so that no step of a build on it comes out of the engine's cache."""
    name = f"gpu-runner/test-planted-base:{os.getpid()}"
    repository, tag = name.split(":")
    container = engine_client.containers.create(horovod_image.base, ["true"], use_config_proxy=False)
    try:
        container.commit(repository=repository, tag=tag, changes=[f"LABEL fresh={os.getpid()}"])
    finally:
        container.remove()
    yield name
    engine_client.images.remove(name)


def test_a_built_image_carries_nothing_of_its_builders_secrets(
    engine_client: docker.DockerClient, fresh_base: str, tmp_path: Path
) -> None:
    with planted_secrets.watched_command_lines() as seen:
        said = careless(
            [*verb("build"), "pytorch", "--base", fresh_base, "--json"], planted_secrets.environment(tmp_path)
        )
    built = result(said)
    try:
        assert not built["up_to_date"]
        assert seen == set()
        image = engine_client.images.get(built["reference"])
        told = json.dumps([image.attrs, image.history()])
        assert "prove.py" in told
        search = f"grep -rlsaF {MARK} /etc /opt /root /tmp /usr/local /var || true"
        holders = engine_client.containers.run(
            built["reference"], ["-c", search], entrypoint=["sh"], network_mode="none", remove=True,
            use_config_proxy=False,
        )  # fmt: skip
        assert holders == b""
    finally:
        engine_client.images.remove(built["reference"])
    for needle in planted_secrets.needles():
        assert needle.decode() not in told
    for name in ("pip.conf", "proxy"):
        assert name not in json.dumps(image.attrs["Config"]).lower()


@pytest.fixture(scope="module")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> Distributions:
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
    assert "every package is installed" in installed("box", "quickstart", "--only-prepare", code=0, **cache)
