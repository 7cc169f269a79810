"""Pyxis and Enroot, which no package of Debian has: where a prefix on this machine holds both.

As ``make install`` of each leaves them, with Enroot's data in the home that the nodes share: bare Enroot runs so. Under
Pyxis, whose containers have one name on all nodes, and once more for bare Enroot, they are on each node's own disk.
"""

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from runner import box
from runner.box import Bind
from runner.images.store.stored_image import StoredImage
from tests.support import editing
from tests.support.commands import Runner, extended
from tests.support.daemons import Daemons
from tests.support.endings import ENDINGS, LONG_ENDINGS, leaves_nothing, spares_a_running_job
from tests.support.ordinary_user import probe
from tests.support.shells import assert_shells
from tests.support.sites.enroot_prefix import FOUND, box_spec

# Where Enroot keeps its data by default: in the home.
HOME_DATA = Path.home() / ".local/share/enroot"


if FOUND:

    @pytest.fixture(scope="module", params=["enroot-home", "enroot", "pyxis"])
    def daemons(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemons]:
        """A box with both, configured as by an administrator unless data are to lie in the home."""
        name, (prefix,) = f"{request.param}-{os.getpid()}", FOUND
        if request.param.endswith("-home"):
            HOME_DATA.mkdir(parents=True, exist_ok=True)
            data = Bind(str(tmp_path_factory.mktemp("home")), str(HOME_DATA))  # not those of other boxes' jobs
            spec = box_spec(name, prefix, None)
            spec = msgspec.structs.replace(spec, binds=(*spec.binds, data))
        else:
            spec = box_spec(name, prefix, tmp_path_factory.mktemp("enroot.conf.d"))
        try:
            cluster = Daemons(box.up(spec))
            cluster.configure(SlurmdTimeout="10")
            yield cluster
        finally:
            box.down(name)

    @pytest.fixture
    def runner(daemons: Daemons, squashfs: StoredImage, tmp_path: Path) -> Runner:
        runtime = daemons.box.spec.name.partition("-")[0]
        return Runner.at(extended(daemons.box.site, tmp_path, runtimes=[runtime]), tmp_path, daemons.box.bin_dir)

    def test_the_main_job(runner: Runner, squashfs: StoredImage) -> None:
        done = runner("submit", "--gpus", "16", "--image", squashfs.digest, "--wait", code=0)
        assert "verdict: measured" in done.out

    @pytest.mark.parametrize("ending", sorted(ENDINGS | LONG_ENDINGS))
    def test_however_a_job_ends_nothing_is_left(runner: Runner, daemons: Daemons, ending: str) -> None:
        """Under Pyxis the image is staged, too: the step that stages it has nothing to do with Pyxis's own.

        After a cancel a file system that is slow may take longer than Slurm waits: the next job removes the rest.
        """
        options = ("--stage",) if daemons.box.spec.name.startswith("pyxis") else ()
        ended = (ENDINGS | LONG_ENDINGS)[ending]
        if "-home" in daemons.box.spec.name and (ended.act or ended.options):
            ended = replace(ended, swept=True)
        leaves_nothing(runner, daemons, ended, *options)

    def test_a_probe_of_an_ordinary_user(daemons: Daemons, squashfs: StoredImage) -> None:
        assert probe(daemons, squashfs.path, daemons.box.spec.name.partition("-")[0])["outcome"] == "ran"

    def test_a_job_removes_nothing_of_a_job_that_runs(runner: Runner, daemons: Daemons) -> None:
        options = ("--stage",) if daemons.box.spec.name.startswith("pyxis") else ()
        spares_a_running_job(runner, daemons, *options, swept="-home" in daemons.box.spec.name)

    def test_a_shell(runner: Runner, squashfs: StoredImage, tmp_path: Path) -> None:
        assert_shells(runner, squashfs.digest, tmp_path)

    def test_an_image_is_edited(tmp_path: Path) -> None:
        editing.assert_edits_by("enroot", f"{FOUND[0]}/bin", tmp_path)
