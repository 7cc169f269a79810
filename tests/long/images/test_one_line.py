"""The benchmark by one line in each engine that is here, as README shows it, with no job and nothing mounted."""

from __future__ import annotations

import re
import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.long.images.test_matrix import GLOO, ROWS, benchmark, inside, made

if TYPE_CHECKING:
    import docker

    from runner.box import Box
    from runner.images.store import StoredImage

pytestmark = pytest.mark.integration


def test_docker_run(engine_client: docker.DockerClient) -> None:
    said = inside(engine_client, made(engine_client, ROWS[0]).reference, *GLOO, *benchmark(ROWS[0]))
    assert re.search(r"throughput: [\d.]+ images/s", said), said


def test_ch_run(cluster: Box, squashfs: StoredImage) -> None:
    words = ["ch-run", "--set-env", str(squashfs.path), "--", *GLOO, *benchmark(ROWS[0])]
    done = subprocess.run(
        [cluster.bin_dir / "in-box", *words], capture_output=True, text=True, timeout=300, check=False
    )
    assert re.search(r"throughput: [\d.]+ images/s", done.stdout), done.stdout + done.stderr
