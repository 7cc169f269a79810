"""A site file out of a real Slurm: detected, refused until filled, checked against the cluster, and a job run by it."""

import getpass
import os
import re
from pathlib import Path

import pytest

from runner import box
from runner.images.store.stored_image import StoredImage
from runner.sites.loader import read_site
from tests.support.commands import Runner, ran
from tests.support.daemons import own_box
from tests.support.documents import result
from tests.support.rank_records import ranks_by_node, records

pytestmark = pytest.mark.integration
GIVEN = {
    "node.cpus_per_gpu": "  cpus_per_gpu: 32",
    "device": "device: cpu",
    "scratch.path": "scratch: {path: '/scratch/{user}', purge_days: null}",
    "home.quota_gb": "home: {quota_gb: null}",
}


def fill(path: Path) -> None:
    """As a person would: what is known in the place of the remark, the rest left to the defaults."""
    remark = re.compile(r"^ *# (?:UNKNOWN|DEFAULT) ([\w.]+):.*\n(?: *#   .*\n)*", re.MULTILINE)
    path.write_text(remark.sub(lambda match: GIVEN[match[1]] + "\n" if match[1] in GIVEN else "", path.read_text()))


def test_from_a_live_cluster_to_a_job(runner: Runner, squashfs: StoredImage, tmp_path: Path) -> None:
    on_path = {"PATH": f"{runner.clients}:{os.environ['PATH']}"}
    path = tmp_path / "ours.yaml"
    said = runner("site", "detect", "--on-node", "-o", str(path), code=0, env=on_path)
    assert "node.cpus_per_gpu" in said.err
    assert "the file exists" in runner("site", "detect", "-o", str(path), code=2, env=on_path).err

    # As the file of a cluster whose GPU node has no driver, and does not say that its GPUs are fake.
    assert "\ndevice: cpu\n" in path.read_text()
    path.write_text(path.read_text().replace("\ndevice: cpu\n", "\n# UNKNOWN device: cuda or cpu\n"))
    unfinished = runner("site", "check", str(path), code=2, env=on_path).err
    line = next(n for n, text in enumerate(path.read_text().splitlines(), start=1) if "# UNKNOWN device:" in text)
    assert f"unknown [device] {path}:{line}: cuda or cpu" in unfinished
    job = ("submit", "--recipe", "probe", "--gpus", "12", "--image", squashfs.digest)
    assert "site-unfinished" in runner(*job, code=3, site=path, env=on_path).err

    fill(path)
    site = read_site(str(path))
    assert (site.node.gpus, site.node.gpu_type, site.node.cpus, site.node.count) == (8, "a100", 256, 2)
    assert (site.runtimes, site.hardware.cpu) == (("charliecloud", "native"), os.uname().machine)
    assert "it agrees" in runner("site", "check", str(path), "--on-node", code=0, env=on_path).out
    runner(*job, "--wait", code=0, site=path, env=on_path)
    assert ranks_by_node(runner.newest()) == [6, 6]

    path.write_text(path.read_text().replace("gpus: 8", "gpus: 4").replace("[charliecloud, native]", "[enroot, pyxis]"))
    findings = result(runner("site", "check", str(path), "--on-node", "--json", code=3, env=on_path).out)["findings"]
    codes = {(each["code"], each["who"]) for each in findings}
    assert codes == {("gpus-differ", "user"), ("runtime-missing", "administrator")}


def test_a_job_that_names_no_cluster_runs_on_the_slurm_that_answers(runner: Runner, tmp_path: Path) -> None:
    """Detected once, kept, reported: the first job of README. A cluster that does not say that its GPUs are fake is
    taken to have real ones; where it has none, the verdict says so."""
    own = {"PATH": f"{runner.clients}:{os.environ['PATH']}", "RUNNER_STATE": str(tmp_path / "my state")}
    job = ("submit", "--gpus", "2", "--runtime", "native", "--wait")
    first = runner(*job, "--recipe", "probe", code=0, env=own, site=Path("slurm"))
    kept = tmp_path / "my state/sites/box-here.yaml"
    assert "verdict: ran" in first.out
    assert "site: box-here, detected from Slurm " in first.err
    assert f"kept in {kept}: correct it there" in first.err

    kept.write_text(kept.read_text().replace("\ndevice: cpu\n", "\n"))
    own |= {"RUNNER_DRIVER_TIMEOUT_S": "0"}
    program = ("--env", "RUNNER_DRIVER_TIMEOUT_S", "--", "sh", "-c", "echo rank $RANK")
    second = runner(*job, *program, code=6, env=own, site=Path("slurm"))
    assert "ranks 0, 1 saw no GPU" in second.out
    assert "asking Slurm" not in second.err


def test_slices_of_gpus_are_detected_and_requested(squashfs: StoredImage, runner: Runner, tmp_path: Path) -> None:
    """A box whose GPUs are MIG slices."""
    shape = box.NodeShape(cores_per_socket=8, gpus=7, gpu_type="a100_1g.5gb")
    with own_box("test-mig", nodes=1, shape=shape) as here:
        path = tmp_path / "mig.yaml"
        on_path = {"PATH": f"{here.bin_dir}:{os.environ['PATH']}"}
        runner("site", "detect", "--on-node", "-o", str(path), "--name", "mig", code=0, env=on_path)
        fill(path)
        node = read_site(str(path)).node
        assert (node.gpus, node.gpu_type) == (7, "a100_1g.5gb")
        job = (
            "submit",
            "--recipe",
            "probe",
            "--gpus",
            "2",
            "--force",
            "own-disk",
            "--image",
            squashfs.digest,
            "--wait",
        )
        assert "mig-slices" in runner(*job, "--wait", code=0, site=path, env=on_path).err


def test_options_of_a_job_are_taken_by_slurm(runner: Runner) -> None:
    """Node, exclusiveness, mail, a GPU's type, a job to wait for and a reservation, as sbatch takes them."""

    def options(*values: str) -> tuple[str, ...]:
        return tuple(word for value in values for word in ("-S", value))

    request = ("submit", "--recipe", "probe", "--gpus", "2")
    where = options("nodelist=dgx02", "exclusive=")
    first = result(runner(*request, "--gpu-type", "a100", *where, "--json", code=0).out)
    made = ("starttime=now", "duration=10", f"users={getpass.getuser()}", "nodes=dgx01", "flags=ignore_jobs")
    scontrol = runner.clients / "scontrol"
    ran([scontrol, "create", "reservation", "reservationname=ours", *made])
    try:
        mail = ("mail-type=END", "mail-user=e@x.org", "nice=10")
        after = options(f"dependency=afterok:{first['job']}", "reservation=ours", *mail)
        runner(*request, *after, "--wait", code=0)
        second = runner.newest()
    finally:
        ran([scontrol, "delete", "reservationname=ours"])
    runner("wait", first["directory"], code=0)
    for run, host in ((Path(first["directory"]), "dgx02"), (second, "dgx01")):
        assert {start["host"] for start in records(run, "start").values()} == {host}
