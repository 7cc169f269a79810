"""The benchmark by one line in each engine that is here, as README shows it, with no job and nothing mounted."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.commands import Runner
from tests.support.documents import result
from tests.support.framework_matrix import GLOO, ROWS, benchmark, image_of, inside

if TYPE_CHECKING:
    import docker

    from runner.box import Box
    from runner.images.store.stored_image import StoredImage

pytestmark = pytest.mark.integration


def output_in(box: Box, *words: str | Path) -> str:
    """What the benchmark's line prints in a box; both streams."""
    done = subprocess.run(
        [box.bin_dir / "in-box", *words, *GLOO, *benchmark(ROWS[0])],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=300, check=False,
    )  # fmt: skip
    return done.stdout


def assert_two_ranks_measured(said: str) -> None:
    assert "2 ranks" in said, said
    assert re.search(r"throughput: [\d.]+ images/s", said), said


@pytest.fixture(scope="module")
def with_apptainer() -> Iterator[Box]:
    """A box whose root has the real Apptainer."""
    from runner import box

    name = f"one-line-{os.getpid()}"
    try:
        yield box.up(box.BoxSpec(name=name, slurm="26.05"))
    finally:
        box.down(name)


def test_docker_run(engine_client: docker.DockerClient) -> None:
    assert_two_ranks_measured(
        inside(engine_client, image_of(engine_client, ROWS[0]).reference, *GLOO, *benchmark(ROWS[0]))
    )


def test_ch_run(cluster: Box, squashfs: StoredImage) -> None:
    assert_two_ranks_measured(output_in(cluster, "ch-run", "--set-env", squashfs.path, "--"))


def test_apptainer_exec(with_apptainer: Box, engine_client: docker.DockerClient, tmp_path: Path) -> None:
    image = image_of(engine_client, ROWS[0])
    runner = Runner(Path(with_apptainer.site), tmp_path / "runs", tmp_path / "state", with_apptainer.bin_dir)
    tools = {"PATH": f"{with_apptainer.bin_dir}:/usr/bin:/bin:/usr/sbin:/sbin"}
    sif = result(runner("convert", "--format", "sif", "--json", image.digest, code=0, env=tools).out)
    assert_two_ranks_measured(output_in(with_apptainer, "apptainer", "exec", "--nv", sif["path"]))
