"""Transport proven by counters, for real: Horovod's Gloo between two network namespaces with two links."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from runner.images.store.stored_image import StoredImage
from runner.jobs import creation
from runner.jobs.collect import Evidence, collect
from runner.jobs.directory import Run
from runner.jobs.transport import carried
from tests.support.evidence import COMPLETED
from tests.support.launchers import by_srun
from tests.support.plans import PLAN
from tests.support.two_networks import ADDRESS, TwoNetworks, two_networks
from tests.support.users import AS_ROOT

pytestmark = [pytest.mark.integration, AS_ROOT]
ROOT = Path(__file__).resolve().parents[2]
PLANNED = msgspec.structs.replace(
    PLAN, tasks_per_node=(1, 1), device="cpu", transport="sockets", env=(("HOROVOD_GLOO_IFACE", "fast0"),)
)
TRAINING = "--model resnet18 --image-size 32 --batch-size 2 --precision fp32 --device cpu --demonstration"
LENGTHS = "--warmup-steps 2 --steps 20"


@pytest.fixture(scope="module")
def networks() -> Iterator[TwoNetworks]:
    with two_networks() as made:
        yield made


def trained(networks: TwoNetworks, image: Path, place: Path, link: str) -> Evidence:
    """Two ranks that met over ``link``, and so train over it; the plan wants fast0."""
    run = creation.create(place / "runs", "gloo-2", 0.0)
    run.write("plan.json", PLANNED)
    for name, source in (("lib", "recipes/lib"), ("recipe", "recipes/horovod-pytorch")):
        subprocess.run(["cp", "-r", str(ROOT / source), str(run.path / name)], check=True)
    ranks = [started(networks, image, place, run, rank, link) for rank in range(2)]
    try:
        # Rank 1 first: where it fails, rank 0 waits for it.
        ended = [process.communicate(timeout=300) for process in reversed(ranks) if process.wait(300) == 0]
    finally:
        for process in ranks:
            process.kill()
    assert [process.returncode for process in ranks] == [0, 0], [process.communicate() for process in ranks]
    assert len(ended) == 2
    return collect(run, COMPLETED)


def started(networks: TwoNetworks, image: Path, place: Path, run: Run, rank: int, link: str) -> subprocess.Popen[str]:
    root = place / f"root-{rank}"
    root.mkdir(exist_ok=True)
    launch = (
        "python3 /results/lib/launch.py --run /results --world 2 --local-sizes 1,1 --bind none -- python3 -u main.py"
    )
    command = f"cd /results/recipe && exec {launch} {TRAINING} {LENGTHS}"
    env = {
        "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        **by_srun(rank, (1, 1)), "RUNNER_RDV_HOST": ADDRESS[link].format(1), "OMP_NUM_THREADS": "1",
    }  # fmt: skip
    return subprocess.Popen(
        networks.argv(rank, image, root, run.path, ADDRESS[link].format(rank + 1), ["/bin/sh", "-c", command]),
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_the_planned_link_carried_the_allreduces_within_five_per_cent(
    networks: TwoNetworks, squashfs: StoredImage, tmp_path: Path
) -> None:
    evidence = trained(networks, squashfs.path, tmp_path, "fast0")
    counted = carried(evidence)
    assert counted.verdict == "proven", counted.sentence
    given = (evidence.reports[0].allreduce_bytes_per_step or 0) * (evidence.reports[0].steps or 0)
    assert given > 10**8
    for node in range(2):
        sent, received = moved(evidence, node, "fast0")
        # Gloo's ring over two ranks sends each byte once; the barrier and Horovod's coordination are the rest.
        assert sent == pytest.approx(given, rel=0.05)
        assert received == pytest.approx(given, rel=0.05)
        assert max(moved(evidence, node, "slow0")) < given / 100


def test_a_run_over_another_link_than_planned_is_reported(
    networks: TwoNetworks, squashfs: StoredImage, tmp_path: Path
) -> None:
    counted = carried(trained(networks, squashfs.path, tmp_path, "slow0"))
    assert counted.verdict == "absent"
    assert "did not go over the planned ports" in counted.sentence


def moved(evidence: Evidence, node: int, name: str) -> tuple[int, int]:
    """Bytes that an interface of a node sent and received in the window."""
    record = evidence.watched[node]
    assert record.window_begin is not None and record.window_end is not None
    first, last = (
        next(port for port in end.ports if port.name == name) for end in (record.window_begin, record.window_end)
    )
    assert None not in (first.sent_bytes, last.sent_bytes, first.received_bytes, last.received_bytes)
    return ((last.sent_bytes or 0) - (first.sent_bytes or 0), (last.received_bytes or 0) - (first.received_bytes or 0))
