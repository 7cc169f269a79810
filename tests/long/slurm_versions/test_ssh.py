"""``shell --ssh`` with Debian 13's util-linux and OpenSSH 10.0, in which another program serves a session."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from runner.box import Box
from runner.images.store.stored_image import StoredImage
from tests.support.ssh_sessions import assert_ssh_scp_and_a_tunnel, nodes_with_sshd
from tests.support.users import AS_ROOT

pytestmark = [pytest.mark.integration, AS_ROOT]


@pytest.fixture(scope="module")
def nodes() -> Iterator[Box]:
    with nodes_with_sshd(slurm="24.11") as box:
        yield box


@pytest.mark.parametrize("runtime", ["native", "charliecloud"])
def test_ssh_scp_and_a_tunnel(runtime: str, nodes: Box, squashfs: StoredImage, tmp_path: Path) -> None:
    assert_ssh_scp_and_a_tunnel(runtime, nodes, squashfs.digest, tmp_path)
