"""Parts that integration tests share, each made once: an engine, the image, its squashfs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from runner import box
from runner.errors import RefusedError
from runner.images import engine
from runner.images.build import BuiltImage, build
from runner.images.convert import convert
from runner.images.progress import Silent
from runner.images.store import StoredImage
from tests.integration.commands import Runner

if TYPE_CHECKING:
    import docker


@pytest.fixture(scope="session")
def engine_client() -> docker.DockerClient:
    """The engine that answers, else the private one below the cache directory; it is left running."""
    try:
        return engine.connect()
    except RefusedError:
        return engine.connect(engine.start_private(engine.default_state()))


@pytest.fixture(scope="session")
def horovod_image(engine_client: docker.DockerClient) -> BuiltImage:
    """The PyTorch image on the stand-in base: the very Dockerfile that is used on NGC."""
    return build("pytorch", "standin", engine_client, Silent())


@pytest.fixture(scope="session")
def squashfs(engine_client: docker.DockerClient, horovod_image: BuiltImage) -> StoredImage:
    """That image in the store."""
    return convert(horovod_image.reference, engine_client, Silent()).image


@pytest.fixture(scope="session")
def cluster() -> Iterator[box.Box]:
    """A box of this test run's own, taken down at its end."""
    name = f"test-{os.getpid()}"
    try:
        yield box.up(box.BoxSpec(name=name))
    finally:
        box.down(name)


@pytest.fixture(scope="session")
def runner(cluster: box.Box, squashfs: StoredImage, tmp_path_factory: pytest.TempPathFactory) -> Runner:
    """The command line against that box, with the image in the store."""
    assert squashfs.path.is_file()
    directory = tmp_path_factory.mktemp("runs")
    return Runner(Path(cluster.site), directory / "my runs", directory / "state", cluster.bin_dir)
