"""The cost model against what others have published. Its parameters were fixed before, and are not fitted to it.

Nothing here was measured by this project, and nothing of the publications is here but single numbers.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, NamedTuple

import pytest

from runner.expectation.expect import Gpu, Machine, Placement, Workload, point
from runner.expectation.network import Curve
from runner.model.expectation import ExpectedPoint, Range
from tests.support.expectations import (
    KNOWN,
    RESNET50,
    a100_cluster,
    between,
    exact,
    expected,
    rate_of_one_gpu,
    shipped,
    with_inputs,
)

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


# HPE ProLiant-XL675d-Gen10-Plus 4N: less than half of what 32 GPUs of another system reach at the same batch.
OUTLIER = MlPerf(32, 102, 58842)
PEER = MlPerf(32, 102, 77806)  # Dell 8xXE8545x4A100-SXM-40GB


# Gradients are half floats there (51 MB), or floats where that is wrong.
DELL = with_inputs(a100_cluster(2), between("gradient-mb", 51.1, 51.1, 102.2))


class Pair(NamedTuple):
    """A published figure, and the one that it is predicted from: (GPUs, nodes, batch of a GPU, images per second).

    ``use``: nothing was fitted to a ``held out`` one; a parameter was fitted to a ``fitted`` one; of ``other batch``
    the model claims nothing, as one GPU alone has another rate at it.
    """

    system: str
    gpu: str
    adapters: tuple[int, float]  # of a node, Gbit/s of each
    known: tuple[int, int, int, float]
    published: tuple[int, int, int, float]
    use: Literal["held out", "fitted", "other batch"] = "held out"


XE8545, R750XA, DGX, XE9680 = (2, 200.0), (1, 100.0), (8, 200.0), (8, 400.0)
PAIRS = (
    *(Pair(f"NVIDIA DGX A100, {name}", "A100-SXM", DGX, (1, 1, 256, one), (8, 1, 256, eight)) for name, one, eight in (
        ("PyTorch TF32", 938.0, 7248.0), ("MXNet AMP", 3410.0, 26674.0), ("TensorFlow TF32", 909.0, 7000.0),
        ("PyTorch AMP", 2470.0, 16621.0), ("TensorFlow AMP", 2375.0, 17400.0))),
    Pair("v2.1 Dell XE8545 40 GB", "A100-SXM", XE8545, (4, 1, 204, 12118.1), (8, 2, 204, 22632.8)),
    Pair("v2.1 Dell XE8545 40 GB", "A100-SXM", XE8545, (8, 2, 204, 22632.8), (16, 4, 204, 45006.4)),
    Pair("v2.1 Dell XE8545 40 GB", "A100-SXM", XE8545, (16, 4, 204, 45006.4), (64, 16, 204, 174778.6)),
    Pair("v2.1 Dell XE8545 80 GB", "A100-SXM", XE8545, (4, 1, 408, 13895.0), (8, 2, 408, 26737.8)),
    Pair("v2.0 H3C R5300G5", "A100-PCIE", R750XA, (4, 1, 408, 12486.9), (8, 1, 408, 24761.2)),
    Pair("v2.0 Nettrix X640G40", "A100-PCIE", R750XA, (10, 1, 256, 28944.7), (14, 1, 256, 40255.8)),
    Pair("v3.1 Fujitsu CDI", "A100-PCIE", R750XA, (2, 1, 408, 6704.0), (4, 1, 408, 13190.0)),
    Pair("v3.0 H3C R5350G6", "A30", R750XA, (8, 1, 204, 13111.5), (10, 1, 204, 16332.8)),
    Pair("v3.1 xFusion G5500V7", "A30", R750XA, (8, 1, 180, 12786.8), (10, 1, 180, 15913.3)),
    Pair("v3.0 xFusion G5500V7", "L40", R750XA, (8, 1, 300, 15985.9), (10, 1, 300, 19897.0)),
    Pair("v3.1 xFusion G5500V7", "L40", R750XA, (8, 1, 300, 16069.5), (10, 1, 300, 20003.3)),
    *(Pair(f"v3.0 Dell R750xa, {name}", "A100-PCIE", net, (4, 1, 408, 12957.0), (8, 2, 408, rate), "fitted")
      for name, net, rate in (("1 EDR", R750XA, 21824.9), ("1 OPA", R750XA, 21039.3), ("2 OPA", (2, 100.0), 21440.1))),
    Pair("v3.0 Dell XE9680", "H100", XE9680, (8, 1, 400, 56083.1), (16, 2, 200, 96541.5), "fitted"),
    Pair("v3.1 Dell XE9680", "H100", XE9680, (8, 1, 400, 56429.9), (16, 2, 200, 100767.6), "fitted"),
    Pair("v4.0 HPE XD670", "H100", XE9680, (8, 1, 400, 57277.2), (16, 2, 200, 100361.4), "other batch"),
    Pair("v3.0 Dell XE9680", "A100-SXM", XE9680, (8, 1, 408, 28604.7), (16, 2, 204, 53712.2), "other batch"),
    Pair("v3.1 Dell XE8640", "H100", (4, 400.0), (4, 1, 816, 29119.1), (8, 2, 408, 54398.7), "other batch"),
    Pair("v2.1 Dell XE8545 80 GB", "A100-SXM", XE8545, (8, 2, 408, 26737.8), (16, 4, 204, 48807.0), "other batch"),
    Pair("v2.1 Dell XE8545 40 GB", "A100-SXM", XE8545, (64, 16, 204, 174778.6), (128, 32, 128, 310723.2),
        "other batch"),
    Pair("v3.0 Dell R750xa, 1 EDR", "A100-PCIE", R750XA, (8, 2, 408, 21824.9), (16, 4, 204, 39975.4), "other batch"),
    Pair("v2.1 NVIDIA DGX A100", "A100-SXM", DGX, (8, 1, 408, 27179.7), (64, 8, 51, 167681.7), "other batch"),
    Pair("v2.1 Azure ND96amsr", "A100-SXM", DGX, (8, 1, 408, 27070.9), (64, 8, 51, 165380.1), "other batch"),
    Pair("v3.0 NVIDIA DGX H100", "H100", XE9680, (8, 1, 400, 56056.4), (64, 8, 50, 294759.2), "other batch"),
    Pair("v3.1 NVIDIA Eos", "H100", XE9680, (8, 1, 400, 56666.6), (64, 8, 50, 318148.1), "other batch"),
    Pair("v4.0 Oracle BM.GPU.H100.8", "H100", XE9680, (8, 1, 400, 56666.6), (64, 8, 50, 306717.0), "other batch"),
)  # fmt: skip


def predicted(pair: Pair) -> Range:
    """The expectation, with the rate of one GPU with which the model gives the figure that is known."""
    gpu, reached = KNOWN.gpu(f"NVIDIA {pair.gpu}"), KNOWN.parameters["reached-verbs"]
    assert gpu is not None
    line = pair.adapters[0] * pair.adapters[1] / 8
    # MXNet's gradients are half floats in MLPerf, or floats where that is wrong; NVIDIA's others are floats.
    gradients = (51.1, 102.2, 102.2) if pair.system.startswith("NVIDIA DGX A100,") else (51.1, 51.1, 102.2)
    inputs = with_inputs(
        a100_cluster(8), between("gradient-mb", *gradients), shipped("between-share"),
        shipped(f"hop-{gpu.link}-us", "hop-inside-us"), shipped(f"inside-share-{gpu.link}", "inside-share"),
        between("inside-gb-s", gpu.bus_gb_s.low, gpu.bus_gb_s.value, gpu.bus_gb_s.high),
        between("between-gb-s", line * reached.low, line * reached.value, line * reached.high),
    )  # fmt: skip

    (gpus, nodes, batch, known), (wanted, on, its_batch, _), adapters = pair.known, pair.published, pair.adapters[0]
    rate = rate_of_one_gpu(gpus, -(-gpus // nodes), batch, known, inputs, adapters=adapters)
    return expected(wanted, -(-wanted // on), its_batch, rate, inputs, adapters=adapters).images_per_s


def below(pair: Pair) -> str:
    """By how much the published figure is below the range; empty where the range holds it, or it is above."""
    low = predicted(pair).low
    return f"{1 - pair.published[3] / low:.1%}" if pair.published[3] < low else ""


def is_held(pair: Pair) -> bool:
    made = predicted(pair)
    return made.low <= pair.published[3] <= made.high


@pytest.mark.parametrize("gpu", KNOWN.gpus, ids=lambda gpu: gpu.pattern)
def test_the_alarm_rests_on_the_pairs_that_nothing_was_fitted_to(gpu: Gpu) -> None:
    held_out = [pair for pair in PAIRS if pair.use == "held out" and KNOWN.gpu(f"NVIDIA {pair.gpu}") == gpu]
    for several, counts in ((False, gpu.inside_pairs), (True, gpu.between_pairs)):
        pairs = [pair for pair in held_out if (pair.published[1] > 1) == several]
        assert counts == (sum(map(is_held, pairs)), len(pairs)), [(pair.system, below(pair)) for pair in pairs]


@pytest.mark.parametrize("use", ["held out", "fitted", "other batch"])
def test_the_page_counts_the_pairs_as_the_model_gives_them(use: str) -> None:
    page = (Path(__file__).resolve().parents[3] / "docs/compare.md").read_text()
    pairs = [pair for pair in PAIRS if pair.use == use]
    others = ", ".join(sorted(filter(None, map(below, pairs)), key=lambda share: float(share[:-1])))
    counts = f"{sum(map(is_held, pairs))} of {len(pairs)}"
    assert f"- {use}: {counts}{'; the others are below it by ' * bool(others)}{others}\n" in page


def test_eight_gpus_predict_16_and_64_at_the_same_batch() -> None:
    for pair, within in zip(PAIRS[6:8], (0.01, 0.03), strict=True):
        assert predicted(pair).value == pytest.approx(pair.published[3], rel=within)


def test_a_result_that_is_far_too_low_is_seen() -> None:
    rate = rate_of_one_gpu(PEER.gpus, 4, PEER.batch, PEER.images_per_s, DELL, adapters=2)
    outlier = expected(OUTLIER.gpus, 4, OUTLIER.batch, rate, DELL, adapters=2).images_per_s
    assert OUTLIER.images_per_s < 0.8 * outlier.low


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
