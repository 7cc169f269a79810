"""The main job under Enroot and Pyxis, which no package of Debian has: where a prefix on this machine holds both.

Looked for in ``ENROOT_PREFIX``, /usr/local and /opt/enroot: ``bin/enroot`` and ``lib/slurm/spank_pyxis.so``.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from runner import box
from runner.images.store.stored_image import StoredImage
from tests.support import editing
from tests.support.commands import Runner

PLACES = filter(None, (os.environ.get("ENROOT_PREFIX"), "/usr/local", "/opt/enroot"))
FOUND = [
    prefix
    for prefix in map(Path, PLACES)
    if (prefix / "bin/enroot").exists() and (prefix / "lib/slurm/spank_pyxis.so").exists()
][:1]

if FOUND:

    @pytest.fixture(scope="module")
    def cluster() -> Iterator[box.Box]:
        name, (prefix,) = f"enroot-{os.getpid()}", FOUND
        spank = f"required {prefix}/lib/slurm/spank_pyxis.so runtime_path=/run/pyxis"
        binds = (box.Bind(str(prefix), str(prefix)), box.Bind(str(prefix / "bin"), "/usr/local/bin"))
        try:
            yield box.up(box.BoxSpec(name=name, spank=(spank,), binds=binds))
        finally:
            box.down(name)

    @pytest.mark.parametrize("runtime", ["pyxis", "enroot"])
    def test_the_main_job(cluster: box.Box, squashfs: StoredImage, tmp_path: Path, runtime: str) -> None:
        site = tmp_path / "site.yaml"
        site.write_bytes(msgspec.yaml.encode({"name": "px", "extends": str(cluster.site), "runtimes": [runtime]}))
        runner = Runner(site, tmp_path / "runs", tmp_path / "state", cluster.bin_dir)
        done = runner("submit", "--gpus", "16", "--image", squashfs.digest, "--wait", code=0)
        assert "verdict: measured" in done.out

    def test_an_image_is_edited(tmp_path: Path) -> None:
        (prefix,) = FOUND
        for inner in ("store", "cache"):
            (tmp_path / inner).mkdir()
        editor = editing.prepared(tmp_path, "enroot", {"PATH": f"{prefix}/bin:/usr/bin:/bin:/usr/sbin:/sbin"})
        editing.assert_edits(editor)
        editing.assert_nothing_of_a_failure(editor)
        editing.assert_nothing_of_a_killed_edit(editor)
