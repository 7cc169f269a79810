"""The cost model against what others have published. Its parameters were fixed before, and are not fitted to it.

Nothing here was measured by this project, and nothing of the publications is here but single numbers.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest

from runner.expectation.expect import Machine, Placement, Workload, point
from runner.expectation.network import Curve
from runner.model.expectation import ExpectedPoint
from tests.support.expectations import KNOWN, RESNET50, a100_cluster, between, exact, expected, shipped, with_inputs

# nccl-tests on 4 DGX A100 with 8 HDR adapters each: bytes -> bus bandwidth, GB/s.
DGX_A100 = {4 << 30: 191.0, 256 << 20: 169.0, 64 << 20: 120.0}


def test_two_points_of_nccl_tests_predict_the_third_within_3_percent() -> None:
    factor = 2 * 31 / 32
    times = {size: factor * size / (bus * 1e9) for size, bus in DGX_A100.items()}
    held_out = 64 << 20
    known = tuple(sorted((float(size), time) for size, time in times.items() if size != held_out))
    curve = Curve(32, 4, known, "published")
    latency_s, bandwidth = curve.line
    assert bandwidth == pytest.approx(192.7e9, rel=0.001)
    assert latency_s == pytest.approx(378e-6, rel=0.01)
    assert curve.allreduce_s(held_out) == pytest.approx(times[held_out], rel=0.03)


# Median `throughput` of the middle one of the runs, in the `:::MLLOG` lines of MLPerf Training v2.1, ResNet-50, MXNet
# with Horovod: github.com/mlcommons/training_results_v2.1, SUBMITTER/results/SYSTEM/resnet/result_*.txt. The batch of a
# GPU is global_batch_size / GPUs. Adapters: `host_networking` in SUBMITTER/systems/SYSTEM.json.
class MlPerf(NamedTuple):
    gpus: int
    batch: int
    images_per_s: float


EIGHT = MlPerf(8, 204, 22657)  # Dell 2xXE8545x4A100-SXM-40GB, as the next two
SIXTEEN = MlPerf(16, 204, 44931)
SIXTY_FOUR = MlPerf(64, 204, 174962)
FOUR_408 = MlPerf(4, 408, 13895)  # Dell XE8545x4A100-SXM-80GB, as the next
EIGHT_408 = MlPerf(8, 408, 26738)
# HPE ProLiant-XL675d-Gen10-Plus 4N: less than half of what 32 GPUs of another system reach at the same batch.
OUTLIER = MlPerf(32, 102, 58842)
PEER = MlPerf(32, 102, 77806)  # Dell 8xXE8545x4A100-SXM-40GB


def dell(gpus: int, batch: int, rate: float) -> ExpectedPoint:
    """Gradients are half floats there (51 MB), or floats where that is wrong."""
    inputs = with_inputs(a100_cluster(2), between("gradient-mb", 51.1, 51.1, 102.2))
    return expected(gpus, 4, batch, rate, inputs, adapters=2)


def rate_of_one(measured: MlPerf) -> float:
    """The rate of one GPU alone with which the model gives what was measured on several."""
    low, high = measured.images_per_s / measured.gpus, 3 * measured.images_per_s / measured.gpus
    for _ in range(25):
        middle = (low + high) / 2
        too_low = dell(measured.gpus, measured.batch, middle).images_per_s.value < measured.images_per_s
        low, high = (middle, high) if too_low else (low, middle)
    return low


@pytest.mark.parametrize(("held_out", "within"), [(SIXTEEN, 0.01), (SIXTY_FOUR, 0.03)])
def test_8_gpus_predict_16_and_64_at_the_same_batch(held_out: MlPerf, within: float) -> None:
    predicted = dell(held_out.gpus, held_out.batch, rate_of_one(EIGHT)).images_per_s
    assert predicted.value == pytest.approx(held_out.images_per_s, rel=within)
    assert predicted.low < held_out.images_per_s < predicted.high


def test_one_node_predicts_two_a_little_too_high() -> None:
    """The second node costs more than the model says: measured is 1 % below the range."""
    predicted = dell(EIGHT_408.gpus, EIGHT_408.batch, rate_of_one(FOUR_408)).images_per_s
    assert predicted.value == pytest.approx(EIGHT_408.images_per_s, rel=0.04)
    assert 0.985 * predicted.low < EIGHT_408.images_per_s < predicted.low


def test_a_result_that_is_far_too_low_is_seen() -> None:
    rate = rate_of_one(PEER)
    outlier = dell(OUTLIER.gpus, OUTLIER.batch, rate)
    assert OUTLIER.images_per_s < 0.8 * outlier.images_per_s.low


# NVIDIA's published rates of DGX A100, mostly on real data, images per second on 1 and 8 GPUs, batch 256 of a GPU:
# facts of NVIDIA/DeepLearningExamples as read in 2026.
PYTORCH_AMP, PYTORCH_TF32, MXNET_AMP = (2470.0, 16621.0), (938.0, 7248.0), (3410.0, 26674.0)


def dgx(rate: float) -> ExpectedPoint:
    inputs = with_inputs(a100_cluster(8), between("gradient-mb", 51.1, 102.2, 102.2))
    return expected(8, 8, 256, rate, inputs)


@pytest.mark.parametrize("rates", [PYTORCH_TF32, MXNET_AMP])
def test_a_dgx_a100_scales_as_published(rates: tuple[float, float]) -> None:
    one, eight = rates
    predicted = dgx(one).images_per_s
    assert predicted.low < eight < predicted.high


def test_pytorch_amp_is_bound_by_its_input_and_fits_only_with_a_ceiling() -> None:
    (fast_one, fast_eight), (slow_one, _) = PYTORCH_AMP, PYTORCH_TF32
    assert fast_eight < dgx(fast_one).images_per_s.low, "6.72 times one GPU: nothing of the model is fitted to it"
    ceiling = with_inputs(a100_cluster(8), exact("gradient-mb", 102.2), exact("input-images-per-s", fast_eight))
    assert expected(8, 8, 256, fast_one, ceiling).bound == "input"
    assert expected(8, 8, 256, slow_one, ceiling).bound == "compute"


# Plausibility check, no validation: Horovod's 512 P100 on 25 GbE, 4 in a node, batch 64 of a GPU, published as 90 %
# (Inception V3, ResNet-101) and 68 % (VGG-16) of linear. The rates of one GPU, the spread and that ResNet-101 and
# Inception V3 have their gradients ready as below are assumed.
RESNET101 = (
    *((0.05, 0.223), (0.1, 0.37), (0.2, 0.463), (0.3, 0.557), (0.4, 0.639)),
    *((0.5, 0.733), (0.6, 0.814), (0.8, 0.974), (1.0, 1.0)),
)
PUBLISHED = {"inception-v3": 0.90, "resnet101": 0.90, "vgg16": 0.68}
TRAINED = {
    "inception-v3": ((115.0, 130.0, 142.0), 95.4, RESNET50),
    "resnet101": ((105.0, 120.0, 135.0), 178.2, RESNET101),
    "vgg16": ((115.0, 130.0, 154.0), 553.4, KNOWN.models["vgg16"].ready),
}


def horovod_512(model: str, *, reached_gb_s: float = 2.5, overlap: bool = True) -> ExpectedPoint:
    (low, rate, high), gradient_mb, ready = TRAINED[model]
    inputs = [
        *(shipped(name) for name in ("forward-share", "cycle-ms", "start-us", "tree-share")),
        shipped("coordination-mpi-us", "coordination-us"),
        shipped("hop-pcie-us", "hop-inside-us"),
        shipped("hop-verbs-us", "hop-between-us"),
        exact("fusion-mb", 67.1),
        between("spread", 0.015, 0.02, 0.035),
        exact("inside-gb-s", 10.0),
        between("between-gb-s", 0.92 * reached_gb_s, reached_gb_s, 1.12 * reached_gb_s),
        between("one-gpu-images-per-s", low, rate, high),
        exact("gradient-mb", gradient_mb),
    ]
    workload = Workload(64, ready, "horovod", by_mpi=True, overlap=overlap)
    return point(Placement(512, 128, 4), Machine(4, 1), workload, inputs)


def too_high_for(**change: Any) -> set[str]:
    """The models whose published efficiency is above the range."""
    return {
        model for model, efficiency in PUBLISHED.items() if efficiency > horovod_512(model, **change).efficiency.high
    }


def test_plausibility_of_horovod_on_512_gpus_breaks_without_overlap_and_on_10_gigabit_ethernet() -> None:
    for model, published in PUBLISHED.items():
        made = horovod_512(model).efficiency
        assert made.low < published < made.high, f"{model}: {made}"
        assert made.value == pytest.approx(published, abs=0.06), model
    assert too_high_for(overlap=False) >= {"resnet101", "vgg16"}
    assert too_high_for(reached_gb_s=1.0) >= {"vgg16"}
