"""The first hour of an ordinary user on a cluster without a site file: accounts, partitions, limits, images."""

from collections.abc import Iterator

import pytest

from runner.core.strict_yaml import read
from tests.support.documents import result
from tests.support.packages import fake_nvml
from tests.support.sites.kestrel import Kestrel, kestrel
from tests.support.users import AS_ROOT
from tests.support.waiting import until

pytestmark = AS_ROOT
DRIVER = """
mount -t tmpfs none /proc/driver
for gpu in 0 1; do
    mkdir -p /proc/driver/nvidia/gpus/0000:0$gpu:00.0
    printf 'GPU UUID: GPU-%s\\nDevice Minor: %s\\n' $gpu $gpu >/proc/driver/nvidia/gpus/0000:0$gpu:00.0/information
done
"""
PROBE = ("submit", "--gpus", "2", "--recipe", "probe", "--runtime", "native")


@pytest.fixture(scope="module")
def user() -> Iterator[Kestrel]:
    with kestrel() as made:
        made(*PROBE, "--dry-run")
        yield made


def allotment(user: Kestrel, run: str) -> dict[str, object]:
    facts: dict[str, object] = result(user("status", run, "--json").out)["allotment"]
    return facts


def test_the_third_command_of_the_readme_runs_by_the_users_default_account(user: Kestrel) -> None:
    said = user(*PROBE, "--name", "third", "--wait").out
    assert "partition gpu-short, account lab42, limit 20 min (the default of box-here: --time changes it)" in said
    assert "verdict: ran" in said
    kept = read(user.home / "state/sites/box-here.yaml").value
    assert [*kept["queues"]] == ["gpu-short", "gpu-long"], "no GPUs, other accounts, another group, a QOS"
    assert (kept["needs"], kept["node"]["count"]) == ([], 2)


def test_an_account_is_named_refused_and_left_to_slurm(user: Kestrel) -> None:
    refused = user(*PROBE, "--account", "nope", code=4).err
    assert "yours: course7, lab42" in refused
    assert "--account" not in user(*PROBE, "--account", "none", "--dry-run").out
    other = result(user(*PROBE, "--account", "course7", "--queue", "gpu-lab7", "--json").out)["run"]
    user("wait", other)
    assert (allotment(user, other)["partition"], allotment(user, other)["account"]) == ("gpu-lab7", "course7")


def test_a_job_that_waits_has_an_estimate_and_one_that_runs_its_time(user: Kestrel) -> None:
    first, second = (
        result(user("submit", "--gpus", "8", "--runtime", "native", *words, "--json", "--", "sleep", "600").out)["run"]
        for words in ((), ("--time", "2:30:00"))
    )
    until(lambda: bool(allotment(user, first)["elapsed_s"]), timeout_s=120)
    waits, runs = allotment(user, second), allotment(user, first)
    assert (waits["limit_s"], waits["limit_is_default"], waits["elapsed_s"], waits["left_s"]) == (
        9000,
        False,
        None,
        None,
    )
    assert waits["estimated_start"] is not None, "asked by the submission, whatever Slurm's scheduler has done since"
    assert runs["estimated_start"] is None
    assert (runs["limit_s"], runs["limit_is_default"]) == (1200, True)
    assert int(str(runs["elapsed_s"])) + int(str(runs["left_s"])) == 1200
    user("cancel", first, second)
    user("wait", first, code=5)


def test_gpu_nodes_are_queried_although_the_default_partition_has_none(user: Kestrel) -> None:
    file = user.home / "mine.yaml"
    user("site", "detect", "--on-node", "-o", str(file))
    assert "on dgx0" in read(file).value["sources"]["runtimes"]
    assert "it agrees" in user("site", "check", "--on-node", "box-here").out
    staff = file.read_text().replace("gpu-long:", "staff:")
    file.write_text(staff)
    assert "warning [queue-closed]" in user("site", "check", str(file)).err


def test_an_image_on_a_cluster_whose_runtimes_are_unknown(user: Kestrel) -> None:
    """As detected on a login node that has none."""
    kept = user.home / "state/sites/box-here.yaml"
    kept.write_text(kept.read_text().replace("runtimes: [charliecloud, native]", "runtimes: [native]"))
    job = ("submit", "--gpus", "2", "--image", "foo:1", "--", "python3", "train.py")
    refused = user(*job, code=2).err
    assert "--image needs a container runtime; none is known at box-here" in refused
    assert "site detect --on-node --keep` asks a GPU node" in refused
    user("site", "detect", "--on-node", "--keep")
    assert kept.with_name(f"{kept.name}.before").exists()
    assert "[image-unusable]" in user(*job, code=3).err, "by Charliecloud, and foo:1 is not converted yet"
    kept.write_text(kept.read_text().replace("runtimes: [charliecloud, native]", "runtimes: [native]"))
    refused = user(*job, code=2).err
    assert "PATH on dgx0" in refused and "--on-node" not in refused, "a node that was asked is not asked again"


def test_each_ranks_gpu_is_shown_while_the_job_runs_and_the_idle_one_by_name(user: Kestrel) -> None:
    """NVML's stand-in is in the box, and dgx01 has the driver's files of two GPUs, of which the second does nothing."""
    library, daemons = fake_nvml(user.home), user.daemons
    daemons.inside(
        "sh",
        "-c",
        'cp "$1" /usr/lib/x86_64-linux-gnu; touch /dev/nvidia0 /dev/nvidia1; chmod 666 /dev/nvidia?',
        "sh",
        str(library),
    )
    daemons.on_node("dgx01", "sh", "-c", DRIVER)
    job = ("--gpus", "2", "--nodelist", "dgx01", "--runtime", "native", "--json", "--", "sleep", "600")
    run = result(user("submit", *job).out)["run"]
    until(lambda: bool(result(user("status", run, "--json").out)["rank_gpus"]), timeout_s=120, every_s=5.0)
    for command in ("status", "show"):
        said = " ".join(user(command, run).out.split())
        assert " 0 dgx01 0 97 % 29.0 of 40.0 GiB 312 W 1 dgx01 1 0 % - 312 W idle (busy for less than 5 %" in said
        assert "of the time): rank 1 (GPU 1 of dgx01)" in said
    user("cancel", run)
    user("wait", run, code=5)
