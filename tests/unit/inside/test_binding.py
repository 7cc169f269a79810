"""GPUs, processors and ports of whole nodes, as the launcher finds them in the node's own files."""

import itertools
from pathlib import Path

import pytest
from gpu_runner_inside.launcher import binding, fabric, wireup
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.topology import DGX_A100, POLARIS, Node


def bound(node: Node, root: Path, allowed: frozenset[int] | None = None) -> list[str]:
    """The processors of each of the node's tasks, one task a GPU."""
    files = node.write(root)
    shown = binding.visible(binding.gpus(files), None)
    every = frozenset(range(2 * node.cores)) if allowed is None else allowed
    size = len(node.gpus)
    return [binding.show(binding.near_gpu(rank, size, shown, every, files).cpus) for rank in range(size)]


HALF = frozenset(range(16, 32)) | frozenset(range(48, 64))  # NUMA nodes 1 and 3, first threads only


@pytest.mark.parametrize(
    ("node", "allowed", "cpus"),
    [
        # Each rank gets half of its GPU's NUMA node.
        (DGX_A100, None, ["48-55,176-183", "56-63,184-191", "16-23,144-151", "24-31,152-159",
                          "112-119,240-247", "120-127,248-255", "80-87,208-215", "88-95,216-223"]),
        # Its GPUs are counted from the last NUMA node.
        (POLARIS, None, ["24-31,56-63", "16-23,48-55", "8-15,40-47", "0-7,32-39"]),
        # A cgroup that holds half of the cores, of a shared node, is kept.
        (DGX_A100, HALF, ["48-55", "56-63", "16-23", "24-31", "", "", "", ""]),
    ],
    ids=["DGX A100", "Polaris", "half of a node"],
)  # fmt: skip
def test_each_rank_gets_its_share_of_the_processors_near_its_gpu(
    tmp_path: Path, node: Node, allowed: frozenset[int] | None, cpus: list[str]
) -> None:
    assert bound(node, tmp_path, allowed) == cpus


def test_a_gpu_has_the_same_processors_in_every_launch_of_a_study(tmp_path: Path) -> None:
    """With any number of ranks, and whichever GPU comes first: a rank alone has no more than one of eight."""
    files = DGX_A100.write(tmp_path)
    gpus, every = binding.gpus(files), frozenset(range(2 * DGX_A100.cores))

    def cpus(shown: tuple[binding.Gpu, ...], size: int) -> list[str]:
        return [
            binding.show(binding.near_gpu(rank, size, shown, every, files, of_all=True).cpus) for rank in range(size)
        ]

    of_all = cpus(gpus, 8)
    assert of_all == bound(DGX_A100, tmp_path / "again")
    assert cpus(gpus, 4) == of_all[:4]
    assert cpus(gpus, 1) == of_all[:1]
    for first in range(8):
        rotated = wireup.from_gpu({}, first, 8)
        assert cpus(binding.visible(gpus, rotated), 1) == [of_all[first]]


def test_the_first_gpu_is_moved_to_the_front_and_all_stay_visible() -> None:
    assert wireup.from_gpu({}, 3, 4) == "3,0,1,2"
    assert wireup.from_gpu({"CUDA_VISIBLE_DEVICES": "4,5,6,7"}, 1, 8) == "5,6,7,4"
    assert wireup.from_gpu({"CUDA_VISIBLE_DEVICES": "4,5"}, 0, 8) is None
    assert wireup.from_gpu({}, 3, 0) is None, "no GPU is seen"
    with pytest.raises(IndexError):
        wireup.from_gpu({"CUDA_VISIBLE_DEVICES": "4,5"}, 2, 8)


def test_a_task_that_sees_only_its_own_gpu_is_bound_near_it(tmp_path: Path) -> None:
    files = DGX_A100.write(tmp_path)
    shown = binding.visible(binding.gpus(files), "5")
    assert binding.show(binding.near_gpu(5, 8, shown, frozenset(range(256)), files).cpus) == "112-127,240-255"


def test_the_ports_near_a_gpu_and_those_that_nccl_is_kept_to(tmp_path: Path) -> None:
    """Of a DGX A100's ten adapters one is active for storage, and one is down."""
    files = DGX_A100.write(tmp_path / "dgx")
    seen, gpus = fabric.ports(files), binding.gpus(files)
    assert [port.name for port in seen] == [f"mlx5_{number}:1" for number in range(10)]
    near = [[port.text for port in fabric.near_gpu(gpu, seen)] for gpu in gpus]
    assert near[0] == near[1] == ["mlx5_0:1 InfiniBand 200", "mlx5_1:1 InfiniBand 200"]
    assert near[4] == ["mlx5_6:1 InfiniBand 200", "mlx5_7:1 InfiniBand 200"]
    assert near[7] == ["mlx5_4:1 Ethernet 100", "mlx5_8:1 InfiniBand 200", "mlx5_9:1 InfiniBand 200"]
    names = ",".join(f"mlx5_{number}:1" for number in (0, 1, 2, 3, 6, 7, 8, 9))
    assert fabric.nccl_adapters(seen) == f"={names}"
    assert fabric.nccl_adapters(tuple(port for port in seen if port.link == "InfiniBand")) == ""
    assert fabric.ports(POLARIS.write(tmp_path / "polaris")) == ()
    assert fabric.nccl_adapters(()) == ""
    slow, fast = (fabric.Port(name, "Ethernet", True, rate, frozenset()) for name, rate in (("a:1", 25), ("b:1", 200)))
    assert fabric.nccl_adapters((slow, fast)) == "=b:1", "of one kind, the fastest"


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(allowed=st.frozensets(st.integers(0, 255)), tasks=st.integers(1, 8))
def test_no_binding_leaves_the_cgroups_mask_or_takes_anothers_share(
    dgx: str, allowed: frozenset[int], tasks: int
) -> None:
    shown = binding.gpus(dgx)
    bound = [binding.near_gpu(rank, tasks, shown, allowed, dgx).cpus for rank in range(tasks)]
    for rank, cpus in enumerate(bound):
        assert cpus <= allowed & shown[rank].near
    # Where cores are too few for the tasks near them, these keep the whole set, and share it.
    for one, other in itertools.pairwise(bound):
        assert not one & other or one == other


@pytest.fixture(scope="module")
def dgx(tmp_path_factory: pytest.TempPathFactory) -> str:
    return DGX_A100.write(tmp_path_factory.mktemp("dgx"))


def test_a_part_of_a_gpu_is_known_by_its_uuid() -> None:
    """CUDA shows the first one only (NVIDIA's MIG user guide: one compute instance a process)."""
    assert binding.part_of_gpu("MIG-1d2c,MIG-77aa") == "MIG-1d2c"
    assert binding.part_of_gpu("MIG-GPU-5c/1/0") == "MIG-GPU-5c/1/0"
    assert [binding.part_of_gpu(text) for text in (None, "", "0", "GPU-5c", "0,MIG-1d2c")] == [None] * 5


def test_a_start_record_names_the_device_that_a_task_uses(dgx: str) -> None:
    gpus = binding.gpus(dgx)

    def device(local_rank: int, **env: str) -> tuple[str, int | None, str | None, int]:
        shown = binding.visible(gpus, env.get("CUDA_VISIBLE_DEVICES"))
        made = binding.device_of_task(local_rank, gpus, shown, env)
        return made.kind, made.index, made.uuid, made.count

    assert device(3) == ("cuda", 3, gpus[3].uuid, 8)
    assert device(3, CUDA_VISIBLE_DEVICES="5") == ("cuda", 0, gpus[5].uuid, 1)
    assert device(3, CUDA_VISIBLE_DEVICES="0,1") == ("cpu", None, None, 2)
    assert device(3, CUDA_VISIBLE_DEVICES="") == ("cpu", None, None, 0)
    for local_rank in (0, 1):
        part = f"MIG-{local_rank}"
        assert device(local_rank, CUDA_VISIBLE_DEVICES=part) == ("cuda", 0, part, 1)
        # A container runtime was given the part: CUDA's own variable is not needed there.
        assert device(local_rank, NVIDIA_VISIBLE_DEVICES=part) == ("cuda", 0, part, 1)
    assert device(2, CUDA_VISIBLE_DEVICES="1,2,3", NVIDIA_VISIBLE_DEVICES="MIG-1")[2] == gpus[3].uuid
    assert binding.device_of_task(0, (), (), {"CUDA_VISIBLE_DEVICES": "MIG-1"}).kind == "cpu", "no driver"
