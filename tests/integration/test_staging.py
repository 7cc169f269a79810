"""``--stage``: the ranks start from a checked copy on their node's own disk, and nothing of it is left."""

import os
import time
from pathlib import Path

import pytest

from runner.core.files import sha256 as sha256_of
from runner.images.store import store
from runner.images.store.stored_image import StoredImage, file_name
from tests.support.commands import Runner, ran
from tests.support.daemons import Daemons
from tests.support.endings import ENDINGS, leaves_nothing, spares_a_running_job
from tests.support.planted_faults import RECIPE
from tests.support.rank_records import document_of, has_started
from tests.support.squashfs import SUPERBLOCK

pytestmark = pytest.mark.integration
WHERE = "/var/tmp"  # the box's own local_scratch


def on_nodes(runner: Runner, *words: str) -> str:
    return ran([runner.clients / "srun", "--overlap", "--nodes=2", "--ntasks-per-node=1", *words], timeout_s=120).out


def test_ranks_start_from_the_copy_which_is_removed(runner: Runner, squashfs: StoredImage) -> None:
    words = ("submit", "--gpus", "4", "--nodes", "2", "--stage", "--recipe", str(RECIPE), "--wait", "--json")
    child, run = runner.start_until(has_started(4), *words, "--", "--fault", "late:5")
    job = document_of(run, "job")["job_id"]
    staged = f"{WHERE}/gpu-runner-stage-{job}~*/image.sqsh"
    sizes = on_nodes(runner, f"--jobid={job}", "sh", "-c", f"stat -c %s {staged}").split()
    assert sizes == [str(squashfs.size_bytes)] * 2
    assert '"$runner_stage"/image.sqsh' in (run / "job.sh").read_text()
    assert child.wait(120) == 0
    assert "gpu-runner-stage" not in on_nodes(runner, "ls", WHERE)


@pytest.mark.parametrize("ending", sorted(ENDINGS))
def test_however_a_job_ends_nothing_is_left(ill: Runner, daemons: Daemons, ending: str) -> None:
    left = leaves_nothing(ill, daemons, ENDINGS[ending], "--stage")
    assert ("gpu-runner-stage" in left) is ENDINGS[ending].swept


def test_a_job_removes_no_copy_of_a_job_that_runs(ill: Runner, daemons: Daemons) -> None:
    spares_a_running_job(ill, daemons, "--stage")


def test_a_disk_without_room_is_reported(runner: Runner, tmp_path: Path) -> None:
    huge = tmp_path / "huge.sqsh"
    huge.write_bytes(SUPERBLOCK)
    os.truncate(huge, 8 * 10**12)
    said = runner("submit", "--gpus", "2", "--stage", "--recipe", "probe", "--image", str(huge), "--wait", code=8).out
    assert f"cannot stage the image: no room: {8 * 10**12} bytes needed" in said
    assert "gpu-runner-stage" not in on_nodes(runner, "ls", WHERE)


def test_a_copy_that_is_not_what_was_converted_never_starts(runner: Runner, tmp_path: Path) -> None:
    """The damage that no glance at submission can see."""
    made = tmp_path / ".made"
    made.write_bytes(SUPERBLOCK + bytes(100_000))
    name = file_name("x:1", "", "0" * 64)
    damaged = StoredImage(
        path=tmp_path / name, reference="x:1", key="k", size_bytes=made.stat().st_size, sha256=sha256_of(made)
    )
    store.publish(made, damaged)
    before = damaged.path.stat()
    with damaged.path.open("r+b") as file:
        file.seek(50_000)
        file.write(b"\1")
    os.utime(damaged.path, ns=(before.st_atime_ns, before.st_mtime_ns))
    began = time.monotonic()
    words = ("submit", "--gpus", "2", "--stage", "--recipe", "probe", "--wait", "--image", str(damaged.path))
    said = runner(*words, code=8).out
    assert "its SHA-256 differs" in said
    assert time.monotonic() - began < 60
    assert "gpu-runner-stage" not in on_nodes(runner, "ls", WHERE)
