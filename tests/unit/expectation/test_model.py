"""Laws that the cost model keeps, whatever the numbers."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runner.expectation.expect import Machine, Placement, Step, Workload, load, point, step
from runner.expectation.network import Curve, Network, expected_maximum
from tests.support.expectations import RESNET50, a100_cluster, exact, expected, with_inputs

RANKS = st.integers(2, 4096)
PER_NODE = st.sampled_from((1, 2, 4, 8))
SPEEDS = st.floats(0.1, 1000.0)
HOPS = st.floats(0.0, 1e-4)
SIZES = st.floats(0.0, 1e10)
WAYS = st.sampled_from(("horovod", "ddp"))
QUICK = settings(deadline=None, max_examples=40)


def network(ranks: int, per_node: int, inside: float, between: float, hop: float) -> Network:
    nodes = -(-ranks // per_node)
    return Network(ranks, nodes, min(ranks, per_node), inside * 1e9, between * 1e9, hop, hop, 1e-5, 0.92)


@QUICK
@given(RANKS, PER_NODE, SPEEDS, SPEEDS, HOPS, SIZES, st.floats(1.0, 10.0))
def test_more_bandwidth_never_takes_longer_and_more_bytes_never_less(
    ranks: int, per_node: int, inside: float, between: float, hop: float, size: float, more: float
) -> None:
    slow = network(ranks, per_node, inside, between, hop)
    fast = network(ranks, per_node, inside * more, between * more, hop)
    assert fast.allreduce_s(size) <= slow.allreduce_s(size)
    assert slow.allreduce_s(size) <= slow.allreduce_s(size * more)
    assert slow.allreduce_s(size) >= slow.allreduce_s(0.0) > 0


def values(step_s: float, gradient_b: float) -> dict[str, float]:
    """Of the inputs of a step that takes so long alone."""
    return {
        "one-gpu-images-per-s": 1.0 / step_s, "forward-share": 0.33, "gradient-mb": gradient_b / 1e6, "spread": 0.02,
        "fusion-mb": 25.0, "bucket-mb": 25.0, "cycle-ms": 1.0,
    }  # fmt: skip


def trained(way: Any, carries: Network, given: dict[str, float], coordination: float, *, overlap: bool = True) -> Step:
    workload = Workload(1, RESNET50, way, overlap=overlap)
    return step(workload, given, carries.allreduce_s, carries.ranks, coordination)


@QUICK
@given(WAYS, RANKS, PER_NODE, SPEEDS, HOPS, st.floats(1e-4, 10.0), st.floats(0.0, 1e10), st.floats(0.0, 0.1))
def test_a_step_is_never_faster_than_one_gpu_and_overlap_only_helps(
    way: str, ranks: int, per_node: int, speed: float, hop: float, step_s: float, gradient: float, coordination: float
) -> None:
    slow, fast = (network(ranks, per_node, each, each, hop) for each in (speed, 2 * speed))
    given = values(step_s, gradient)
    made = trained(way, slow, given, coordination)
    assert made.exposed_s >= 0 and made.waiting_s > 0
    assert made.total_s == pytest.approx(step_s + made.exposed_s + made.waiting_s)
    assert trained(way, fast, given, coordination).total_s <= made.total_s * (1 + 1e-12)
    without = trained(way, slow, given, coordination, overlap=False)
    assert without.exposed_s == pytest.approx(without.allreduce_s)


@QUICK
@given(WAYS, st.floats(1.0, 1e9), st.floats(1e-3, 1.0))
def test_all_gradients_are_reduced_once(way: Any, gradient: float, step_s: float) -> None:
    carried: list[float] = []

    def takes(size: float) -> float:
        carried.append(size)
        return 0.0

    step(Workload(1, RESNET50, way), values(step_s, gradient), takes, 2, 1e-4)
    assert sum(carried) == pytest.approx(gradient)
    assert max(carried) <= 25e6 * (1 + 1e-9)


def test_one_gpu_is_its_own_rate_and_waits_for_nobody() -> None:
    made = expected(1, 8, 256, 2400.0, with_inputs(a100_cluster(8), exact("gradient-mb", 102.2)))
    assert made.images_per_s.low == made.images_per_s.value == made.images_per_s.high == pytest.approx(2400.0)
    assert (made.exposed_s, made.waiting_s, made.efficiency.value) == pytest.approx((0.0, 0.0, 1.0))
    assert [each.name for each in made.sensitivities] == ["one-gpu-images-per-s"]


@settings(deadline=None, max_examples=15)
@given(st.integers(1, 2048), PER_NODE, st.floats(10.0, 10000.0), st.floats(1.0, 2000.0), WAYS)
def test_a_range_holds_its_value_and_every_end_of_every_input(
    gpus: int, per_node: int, rate: float, gradient: float, way: Any
) -> None:
    inputs = with_inputs(a100_cluster(8), exact("gradient-mb", gradient), exact("one-gpu-images-per-s", rate))
    placement = Placement(gpus, -(-gpus // per_node), min(gpus, per_node))
    workload = Workload(64, RESNET50, way, by_mpi=True)
    made = point(placement, Machine(per_node, 8), workload, inputs)
    for each in (made.images_per_s, made.efficiency):
        assert 0 < each.low <= each.value <= each.high < math.inf
    assert made.efficiency.high <= 1.0 + 1e-9, "never above linear"
    for changed in inputs:
        if changed.name in ("spread", "coordination-us", "between-gb-s"):
            value = changed.high
            alone = point(placement, Machine(per_node, 8), workload, with_inputs(inputs, exact(changed.name, value)))
            low, high = made.images_per_s.low, made.images_per_s.high
            assert low * (1 - 1e-9) <= alone.images_per_s.value <= high * (1 + 1e-9)


def test_throughput_stays_below_the_ceiling_of_the_input() -> None:
    inputs = with_inputs(a100_cluster(8), exact("gradient-mb", 102.2), exact("input-images-per-s", 10_000.0))
    made = expected(16, 8, 256, 2400.0, inputs)
    assert (made.bound, made.images_per_s.high) == ("input", 20_000.0)
    assert made.sensitivities[0].name == "input-images-per-s"
    assert made.sensitivities[0].less == pytest.approx(-0.2)


def test_a_slow_network_is_what_binds() -> None:
    inputs = with_inputs(a100_cluster(8), exact("gradient-mb", 553.4), exact("between-gb-s", 0.9))
    made = expected(16, 8, 64, 1200.0, inputs)
    assert (made.bound, made.efficiency.high < 0.2) == ("communication", True)
    assert made.sensitivities[0].name in ("between-gb-s", "gradient-mb")


def test_fewer_gpus_of_a_node_use_fewer_adapters() -> None:
    inputs = with_inputs(a100_cluster(8), exact("gradient-mb", 5000.0), exact("one-gpu-images-per-s", 1000.0))
    workload = Workload(64, RESNET50, "ddp")
    whole, part = (point(Placement(2 * each, 2, each), Machine(8, 8), workload, inputs) for each in (8, 1))
    assert part.allreduce_s > 3 * whole.allreduce_s


@pytest.mark.parametrize(("ranks", "expected_value"), [(1, 0.0), (2, 0.5642), (8, 1.4236), (16, 1.766), (512, 3.0437)])
def test_the_slowest_of_several_normal_values(ranks: int, expected_value: float) -> None:
    assert expected_maximum(ranks) == pytest.approx(expected_value, abs=1e-3)


CURVE = Curve(16, 2, ((1e3, 30e-6), (1e6, 60e-6), (1e8, 1.2e-3)), "a test")


def test_measured_times_are_hit_interpolated_between_and_extrapolated_beyond() -> None:
    for size, seconds in CURVE.times:
        assert CURVE.allreduce_s(size) == pytest.approx(seconds)
    assert 30e-6 < CURVE.allreduce_s(3e4) < 60e-6
    assert CURVE.allreduce_s(2e8) > 2e-3
    assert CURVE.allreduce_s(1.0) == pytest.approx(30e-6)


def measured_point(gpus: int, curve: Curve | None, **changed: float) -> float:
    inputs = with_inputs(
        a100_cluster(8), exact("gradient-mb", 500.0), exact("one-gpu-images-per-s", 2400.0),
        *(exact(name.replace("_", "-"), value) for name, value in changed.items()),
    )  # fmt: skip
    placement = Placement(gpus, -(-gpus // 8), min(gpus, 8))
    return point(placement, Machine(8, 8), Workload(64, RESNET50, "ddp"), inputs, curve).allreduce_s


def test_where_times_were_measured_they_replace_the_network_and_elsewhere_its_bandwidth() -> None:
    slow_curve = Curve(16, 2, tuple((size, 10 * seconds) for size, seconds in CURVE.times), "a test")
    for gpus in (16, 64):
        assert measured_point(gpus, CURVE, between_gb_s=1.0) == measured_point(gpus, CURVE, between_gb_s=200.0)
        assert measured_point(gpus, slow_curve) > 5 * measured_point(gpus, CURVE)
    assert measured_point(16, None, between_gb_s=1.0) > measured_point(16, None, between_gb_s=200.0)


def test_every_shipped_parameter_has_a_range_and_a_source() -> None:
    known = load()
    for name, each in known.parameters.items():
        assert each.low <= each.value <= each.high, name
        assert len(each.source) > 10, name
    for gpu in known.gpus:
        assert gpu.bus_gb_s.low <= gpu.bus_gb_s.value <= gpu.bus_gb_s.high
    for model, gradients in known.models.items():
        for (time, share), (later, larger) in zip(gradients.ready, gradients.ready[1:], strict=False):
            assert time < later and share <= larger, model
        assert gradients.ready[-1] == (1.0, 1.0), model


def layers(name: str) -> list[tuple[int, int]]:
    """(parameters, multiplications) of each layer of a ResNet of recipes/horovod-pytorch/models.py, first to last."""
    depths = {"resnet18": (2, 2, 2, 2), "resnet34": (3, 4, 6, 3), "resnet50": (3, 4, 6, 3)}[name]
    made: list[tuple[int, int]] = []

    def convolution(inputs: int, outputs: int, kernel: int, side: int) -> None:
        weights = inputs * outputs * kernel * kernel
        made.append((weights + 2 * outputs, weights * side * side))  # with BatchNorm's two vectors

    convolution(3, 64, 7, 112)
    inputs = 64
    for stage, depth in enumerate(depths):
        width, side = 64 << stage, 56 >> stage
        for place in range(depth):
            first = stage > 0 and place == 0
            outputs = 4 * width if name == "resnet50" else width
            if name == "resnet50":
                convolution(inputs, width, 1, 2 * side if first else side)
            convolution(width if name == "resnet50" else inputs, width, 3, side)
            convolution(width, outputs, 1 if name == "resnet50" else 3, side)
            if first or inputs != outputs:
                convolution(inputs, outputs, 1, side)
            inputs = outputs
    return [*made, (inputs * 1000 + 1000, inputs * 1000)]


@pytest.mark.parametrize("name", ["resnet18", "resnet34", "resnet50"])
def test_the_shipped_gradients_are_those_of_the_model(name: str) -> None:
    counted, gradients = layers(name)[::-1], load().models[name]
    total, work = (sum(each[place] for each in counted) for place in (0, 1))
    assert gradients.parameters == total
    for time, share in gradients.ready:
        done = ready = 0
        for weights, multiplications in counted:
            done += multiplications
            if done > time * work * (1 + 1e-12):
                break
            ready += weights
        assert ready / total == pytest.approx(share, abs=0.001)
