"""An assembled squashfs has what one from scratch has, entry for entry: random images, each over those before.

``RUNNER_ASSEMBLY_SEEDS=FIRST-LAST`` takes others than the suite's.
"""

import os
from functools import partial
from pathlib import Path

import docker
import pytest

from runner.core.errors import InfrastructureError, RefusedError
from runner.core.progress import Silent
from runner.images.conversion.squashfs import convert_engine_image, created_at
from runner.images.packing.mksquashfs import Packing
from tests.support import random_images
from tests.support.odd_image import content_lines
from tests.support.users import AS_ROOT

pytestmark = [pytest.mark.integration, AS_ROOT]
_FIRST, _LAST = map(int, os.environ.get("RUNNER_ASSEMBLY_SEEDS", "1-5").split("-"))


class Heard(Silent):
    def __init__(self) -> None:
        self.lines: list[str] = []

    def line(self, text: str) -> None:
        self.lines += [text] * text.startswith("assembled in ")


@pytest.mark.parametrize("seed", range(_FIRST, _LAST + 1))
def test_assembled_is_as_from_scratch(seed: int, engine_client: docker.DockerClient, tmp_path: Path) -> None:
    tag, packing, heard = f"gpu-runner/test-assembly-{os.getpid()}:{seed}", Packing(block="128K"), Heard()
    loaded: dict[str, None] = {}
    try:
        for raw in random_images.archives(seed, tag, 5):
            (image,) = engine_client.images.load(raw)
            loaded[str(image.id)] = None
            convert = partial(convert_engine_image, tag, engine_client, heard, packing=packing)
            try:
                made = [convert(store_dir=tmp_path / "scratch").image]
            except (RefusedError, InfrastructureError) as error:  # no container of it starts, as with a file at /etc
                assert isinstance(error, RefusedError) or "the engine failed" in error.what
                continue
            made.append(convert(store_dir=tmp_path / "assembled", assemble=True).image)
            lines = [content_lines(each.path) for each in made]
            trees = [random_images.as_mounted(each.path, tmp_path / "mount") for each in made]
            if not created_at(image.attrs["Created"]):  # mksquashfs gives the root of an archive a time of its own
                lines = [{line for line in each if not line.startswith(b"/ D ")} for each in lines]
                trees = [{name: entry for name, entry in each.items() if name != "."} for each in trees]
            assert trees[0] == trees[1]
            assert lines[0] == lines[1]
            assert len({(each.entries, str(each.about), each.environment["N"]) for each in made}) == 1
    finally:
        for name in reversed(loaded):
            engine_client.images.remove(name, force=True)
    print(f"assembled {len(heard.lines)} of {len(loaded) - 1}")
