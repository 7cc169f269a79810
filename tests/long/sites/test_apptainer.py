"""The main job from a SIF file, under the real Apptainer on a real Slurm 26.05: both of Debian unstable."""

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from runner import box
from runner.box.root import ensure
from runner.images.building.build import BuiltImage
from runner.images.store.stored_image import StoredImage
from runner.recipes.loader import library
from tests.support.commands import Runner, extended
from tests.support.daemons import own_box
from tests.support.documents import result
from tests.support.rank_records import document_of, records
from tests.support.shells import assert_shells


@pytest.fixture(scope="module")
def unstable() -> Iterator[box.Box]:
    """Its root has Apptainer."""
    with own_box("test-apptainer", slurm="26.05") as made:
        yield made


def tools(unstable: box.Box) -> dict[str, str]:
    return {"PATH": f"{unstable.bin_dir}:/usr/bin:/bin:/usr/sbin:/sbin"}


def test_the_main_job_from_a_sif(unstable: box.Box, horovod_image: BuiltImage, tmp_path: Path) -> None:
    """Built once, then up to date, and measured with 16 ranks."""
    runner = Runner.at(unstable.site, tmp_path, unstable.bin_dir, runs="my runs")
    convert = ("convert", "--format", "sif", "--json", horovod_image.digest)
    first = result(runner(*convert, code=0, env=tools(unstable)).out)
    again = result(runner(*convert, code=0, env=tools(unstable)).out)
    assert Path(first["path"]).suffix == ".sif"
    assert (again["path"], again["made"]) == (first["path"], False)
    assert first["about"]["framework"] == "pytorch"
    assert first["entries"] > 10_000
    assert f"good   {first['path']}" in runner("images", "verify", first["path"], code=0).out
    assert first["path"] in {row["path"] for row in result(runner("images", "list", "--json", code=0).out)}

    words = ("submit", "--gpus", "16", "--runtime", "apptainer", "--image", horovod_image.digest, "--wait")
    done = runner(*words, code=0)
    assert "verdict: measured" in done.out
    assert str(Path(first["path"])) in (runner.newest() / "job.sh").read_text()


def test_a_shell(unstable: box.Box, horovod_image: BuiltImage, tmp_path: Path) -> None:
    runner = Runner.at(extended(unstable.site, tmp_path, runtimes=["apptainer"]), tmp_path, unstable.bin_dir)
    runner("convert", "--format", "sif", horovod_image.digest, code=0, env=tools(unstable))
    assert_shells(runner, horovod_image.digest, tmp_path)


LISTENS = """\
import os, pathlib, signal, sys, time
def leave(*_):
    import sqlite3, xml.dom.minidom  # from the image, not read until now
    sys.exit(print("checkpoint", flush=True))
signal.signal(signal.SIGUSR1, leave)
names = {path.read_text().strip() for path in pathlib.Path("/proc").glob("[0-9]*/comm")}
print("served by", sorted(name for name in names if "fuse" in name), flush=True)
time.sleep(600)
"""


def test_the_notice_of_the_time_limit_reaches_the_program_and_not_what_serves_its_image(
    unstable: box.Box, horovod_image: BuiltImage, tmp_path: Path
) -> None:
    """Under Slurm; as root, Apptainer has the kernel mount the image, so that squashfuse has a test of its own."""
    runner = Runner.at(unstable.site, tmp_path, unstable.bin_dir)
    tools = {"PATH": f"{unstable.bin_dir}:/usr/bin:/bin:/usr/sbin:/sbin"}
    runner("convert", "--format", "sif", "--json", horovod_image.digest, code=0, env=tools)
    words = ("submit", "--gpus", "2", "--runtime", "apptainer", "--image", horovod_image.digest, "--time", "1:00")
    runner(*words, "--wait", "--", "python3", "-c", LISTENS, code=0)
    for rank in range(2):
        log = (runner.newest() / f"logs/rank-{rank}.out").read_text()
        assert "checkpoint" in log
        assert json.loads((runner.newest() / f"ranks/{rank}.exit.json").read_text())["signals_forwarded"] == [10]


# The box's root as the root of a mount namespace; there the launcher in Apptainer's user namespace, where squashfuse
# serves the image. Arguments: root, image, run directory, and whether all processes get USR1 ("" for the notice alone).
FUSE = """\
set -eu
root=$1 image=$2 run=$3 signalled=$4
mount --bind "$root" "$root"
mount -t proc proc "$root/proc"
mount --rbind /dev "$root/dev"
mount --rbind /sys "$root/sys"
mount -t tmpfs tmpfs "$root/tmp"
mount -t tmpfs tmpfs "$root/mnt"
mkdir "$root/mnt/old" "$root/mnt/run"
touch "$root/mnt/image"
mount --bind "$image" "$root/mnt/image"
mount --bind "$run" "$root/mnt/run"
cd "$root"
pivot_root . mnt/old
umount -l /mnt/old
export PATH=/usr/bin:/bin:/usr/sbin:/sbin HOME=/tmp
apptainer exec --userns --no-home --bind /mnt/run:/results /mnt/image python3 -u /results/lib/launch.py \\
  --run /results --world 1 -- python3 /results/listens.py >/mnt/run/out 2>&1 &
for try in $(seq 200); do ! grep -q '^served' /mnt/run/out || break; sleep 0.3; done
for process in /proc/[0-9]*; do
  [ -n "$signalled" ] || break
  case $(cat "$process/comm" 2>/dev/null) in squashfuse* | python3) kill -USR1 "${process#/proc/}" || true ;; esac
done
[ -n "$signalled" ] || echo USR1 >>/mnt/run/notices
wait "$!"
"""


@pytest.mark.parametrize(("signalled", "lives"), [("every", False), ("", True)], ids=["signal", "notice"])
def test_a_signal_to_every_process_takes_the_image_away_and_a_notice_does_not(
    squashfs: StoredImage, tmp_path: Path, signalled: str, lives: bool
) -> None:
    """squashfuse has no handler for USR1, which Slurm sends to every process of a step."""
    (tmp_path / "listens.py").write_text(LISTENS)
    (tmp_path / "notices").touch()
    shutil.copytree(library(), tmp_path / "lib")
    root = str(ensure("26.05", print).path)
    namespaces = ("unshare", "--mount", "--pid", "--fork", "--mount-proc", "--propagation", "private")
    words = (*namespaces, "bash", "-c", FUSE, "bash", root, squashfs.path, str(tmp_path), signalled)
    done = subprocess.run(words, capture_output=True, text=True, timeout=180, check=False)
    said = (tmp_path / "out").read_text()
    assert "served by ['squashfuse" in said, done.stderr
    assert ("checkpoint" in said, done.returncode == 0) == (lives, lives)


def test_what_the_builder_prints_is_shown_whole_and_nothing_is_left(
    unstable: box.Box, horovod_image: BuiltImage, tmp_path: Path
) -> None:
    """A builder that has no room for the image's tree."""
    runner = Runner(Path(unstable.site), tmp_path, tmp_path / "state", unstable.bin_dir)
    store = tmp_path / "store"
    (no_room := tmp_path / "no room").touch()
    env = {"PATH": f"{unstable.bin_dir}:/usr/bin:/bin", "APPTAINER_TMPDIR": str(no_room)}
    words = ("convert", "--format", "sif", "--store", str(store), horovod_image.reference)
    said = runner(*words, code=8, env=env).err
    assert "apptainer failed with exit code" in said
    assert str(no_room) in said
    assert list(store.iterdir()) == []


@pytest.mark.usefixtures("squashfs")
def test_the_main_job_by_pmix(tmp_path: Path) -> None:
    """Two ranks on each of two nodes. What the box alone needs: its nodes keep PMIx's directories in /run, and reach
    each other by addresses of the loopback interface, which Open MPI leaves out.
    """
    with own_box("pmix") as cluster:
        site = extended(cluster.site, tmp_path, mpi={"pmi": ["pmix"]})
        runner = Runner.at(site, tmp_path, cluster.bin_dir, runs="my runs")
        loopback = ("--env", "OMPI_MCA_if_base_retain_loopback=1", "--env", "OMPI_MCA_btl_tcp_if_include=lo")
        shape = ("--gpus", "4", "--nodes", "2", "--time", "5:00", "--mount", "/run:/run")
        done = runner("submit", "--wireup", "pmix", *shape, *loopback, "--wait", code=0)
    assert "verdict: measured" in done.out
    assert "wireup-unproven" in done.err
    run = runner.newest()
    assert {report["world_size"] for report in records(run, "report").values()} == {4}
    for start in records(run, "start").values():
        assert (start["wireup"], start["rendezvous"], start["met"]) == ("env", None, True)
    assert document_of(run, "plan")["mpi"] == "pmix"
