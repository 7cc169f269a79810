"""Eight rows of the table of launchers that need torch, Horovod and no more; `make test-launchers` runs them all."""

from pathlib import Path

import pytest

from runner.box import Box
from runner.images.store.stored_image import StoredImage
from tests.support import launcher_table
from tests.support.commands import Runner
from tests.support.launcher_environment import environment

pytestmark = pytest.mark.integration
ROWS = {row.name: row for row in launcher_table.ROWS if row.torch}
NATIVE = (
    ("python", 2), ("torchrun", 2), ("torchrun, its counts right", 2), ("torchrun --standalone", 1),
    ("torchrun, its own rendezvous", 2), ("bash train.sh, torchrun in it", 2),
)  # fmt: skip
IN_CONTAINERS = (("torchrun", 2), ("Horovod", 2))


@pytest.mark.parametrize(("name", "nodes"), NATIVE)
def test_natively(cluster: Box, squashfs: StoredImage, tmp_path: Path, name: str, nodes: int) -> None:
    place = environment(squashfs.path, frameworks=False)
    options = ("--runtime", "native", "--env-name", str(place))
    launcher_table.check(Runner.at(cluster.site, tmp_path, cluster.bin_dir), ROWS[name], nodes, tmp_path, *options)


@pytest.mark.parametrize(("name", "nodes"), IN_CONTAINERS)
def test_in_charliecloud(cluster: Box, squashfs: StoredImage, tmp_path: Path, name: str, nodes: int) -> None:
    runner = Runner.at(cluster.site, tmp_path, cluster.bin_dir)
    launcher_table.check(runner, ROWS[name], nodes, tmp_path, "--image", str(squashfs.path))
