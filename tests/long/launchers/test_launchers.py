"""Every row of the table of launchers, on one node and on two: natively, in Charliecloud and in Apptainer, and under
Enroot and Pyxis where a prefix on this machine holds both (``tests/support/sites/enroot_prefix.py``).
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from runner.images.building.build import BuiltImage
from runner.images.store.stored_image import StoredImage
from tests.support import launcher_table
from tests.support.commands import Runner, extended
from tests.support.daemons import own_box
from tests.support.documents import result
from tests.support.launcher_environment import MOUNTED, environment
from tests.support.launcher_table import ROWS, Row
from tests.support.sites.enroot_prefix import FOUND, box_spec

Way = tuple[Any, tuple[str, ...], bool]  # a box, options of ``submit``, whether in containers
OF_PREFIX = ("enroot", "pyxis")


@pytest.fixture(scope="module", params=(*launcher_table.RUNTIMES, *OF_PREFIX * bool(FOUND)))
def way(
    request: pytest.FixtureRequest,
    squashfs: StoredImage,
    horovod_image: BuiltImage,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Way]:
    """A box whose nodes have mpirun and Open MPI's libraries; for Apptainer one that has it, where Slurm is newer."""
    runtime: str = request.param
    place = environment(squashfs.path, frameworks=True)
    of_box: dict[str, Any] = {"slurm": "26.05"} if runtime == "apptainer" else {"packages": ("openmpi-bin",)}
    if runtime in OF_PREFIX:
        spec = box_spec(runtime, FOUND[0], tmp_path_factory.mktemp("enroot.conf.d"))
        of_box = {"spank": spec.spank, "binds": spec.binds}
    with own_box("launchers", **of_box) as box:
        if runtime == "native":
            yield box, ("--runtime", runtime, "--env-name", str(place)), False
            return
        image = str(squashfs.path)
        if runtime == "apptainer":
            tools = Runner.at(box.site, place, box.bin_dir)
            path = {"PATH": f"{box.bin_dir}:/usr/bin:/bin:/usr/sbin:/sbin"}
            words = ("convert", "--format", "sif", "--json", horovod_image.digest)
            image = result(tools(*words, code=0, env=path).out)["path"]
        yield box, ("--runtime", runtime, "--image", image, "--mount", f"{place}:{MOUNTED}"), True


@pytest.mark.parametrize("nodes", [1, 2])
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_no_world_is_wrong_in_silence(way: Way, row: Row, nodes: int, tmp_path: Path) -> None:
    """One world of a process for each GPU; else a refusal before the queue, or a verdict that says what formed."""
    box, options, contained = way
    site = extended(box.site, tmp_path, runtimes=[options[1]])
    runner = Runner.at(site, tmp_path, box.bin_dir)
    launcher_table.check(runner, row, nodes, tmp_path, *options, programs=f"{MOUNTED}/bin" if contained else "")
