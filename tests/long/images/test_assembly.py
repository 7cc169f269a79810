"""An assembled squashfs has every entry that one from scratch has: random images, each over the one before.

``RUNNER_ASSEMBLY_SEEDS=FIRST-LAST`` tries others than the suite's.
"""

import os
from pathlib import Path

import docker
import pytest

from runner.core.errors import InfrastructureError, RefusedError
from runner.core.progress import Silent
from runner.images.conversion import squashfs
from runner.images.conversion.squashfs import ASSEMBLED, convert_engine_image
from runner.images.packing.mksquashfs import Packing
from runner.images.store.integrity import verified
from tests.support import random_images
from tests.support.odd_image import content_lines
from tests.support.users import AS_ROOT

pytestmark = [pytest.mark.integration, AS_ROOT]
_FIRST, _LAST = map(int, os.environ.get("RUNNER_ASSEMBLY_SEEDS", "1-5").split("-"))
_IMAGES = 5


@pytest.mark.parametrize("seed", range(_FIRST, _LAST + 1))
def test_assembled_is_as_from_scratch(seed: int, engine_client: docker.DockerClient, tmp_path: Path) -> None:
    tag = f"gpu-runner/test-assembly-{os.getpid()}:{seed}"
    packing = Packing(block="128K")
    before: dict[str, bool] = {}
    done = 0
    try:
        for raw in random_images.archives(seed, tag, _IMAGES):
            (image,) = engine_client.images.load(raw)
            before[str(image.id)] = True
            try:
                scratch = convert_engine_image(
                    tag, engine_client, Silent(), store_dir=tmp_path / "scratch", packing=packing
                ).image
            except (RefusedError, InfrastructureError) as error:  # no container of it starts, as with a file at /etc/rc
                assert isinstance(error, RefusedError) or "the engine failed" in error.what
                continue
            made = convert_engine_image(
                tag, engine_client, Silent(), store_dir=tmp_path / "store", packing=packing, assemble=True
            ).image
            done += made.converter == ASSEMBLED
            lines = [content_lines(each.path) for each in (scratch, made)]
            wanted, got = (random_images.as_mounted(each.path, tmp_path / "mount") for each in (scratch, made))
            if not squashfs.created_at(image.attrs["Created"]):  # mksquashfs gives the root of an archive its own time
                del wanted["."], got["."]
                lines = [{line for line in each if not line.startswith(b"/ D ")} for each in lines]
            assert {name: (wanted.get(name), got.get(name)) for name in wanted.keys() | got.keys()} == {
                name: (wanted[name], wanted[name]) for name in wanted
            }
            assert lines[0] == lines[1]
            assert (made.entries, made.about, made.omitted) == (scratch.entries, scratch.about, scratch.omitted)
            assert not verified(made).broken
    finally:
        for name in reversed(before):
            engine_client.images.remove(name, force=True)
    print(f"assembled {done} of {len(before)}")
