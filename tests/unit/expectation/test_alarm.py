"""The alarm: only a whole interval below the range, with the causes that the run's own records show."""

from __future__ import annotations

import msgspec
import pytest

from runner.expectation.alarm import compare
from runner.model.expectation import Signs
from runner.model.study import Estimate
from tests.support.expectations import KNOWN, a100_cluster, exact, expected, with_inputs

INPUTS = with_inputs(a100_cluster(8), exact("gradient-mb", 102.2))
POINT = expected(16, 8, 256, 2400.0, INPUTS)
LOW, HIGH = POINT.images_per_s.low, POINT.images_per_s.high
SLOW = Estimate(0.5 * LOW, 0.49 * LOW, 0.51 * LOW)
HEALTHY = Signs(
    nodes=2, planned="verbs", networks=("IB",), kinds=("verbs",), planned_adapters=8, with_gdr=32, peer_to_peer=28,
    adapters=tuple(f"mlx5_{number}:1" for number in range(8)), judged_ranks=True, real_data=False,
)  # fmt: skip


@pytest.mark.parametrize(
    ("measured", "state"),
    [
        (SLOW, "below"),
        (Estimate(0.99 * LOW, 0.97 * LOW, 1.001 * LOW), "within"),
        (Estimate((LOW + HIGH) / 2, LOW, HIGH), "within"),
        (Estimate(0.5 * LOW, 0.1 * LOW, 2 * HIGH), "within"),
        (Estimate(2 * HIGH, 1.9 * HIGH, 2.1 * HIGH), "above"),
        (Estimate(0.5 * LOW), "cannot tell"),
        (Estimate(0.5 * LOW, low=0.4 * LOW), "cannot tell"),
    ],
)
def test_the_alarm_needs_the_whole_interval_below_the_range(measured: Estimate, state: str) -> None:
    made = compare(POINT, measured, HEALTHY)
    assert (made.state, bool(made.causes)) == (state, state == "below")


def states(**changes: object) -> dict[str, str]:
    signs = msgspec.structs.replace(HEALTHY, **changes)
    return {cause.name: cause.state for cause in compare(POINT, SLOW, signs).causes}


def test_a_healthy_run_excludes_every_cause() -> None:
    assert set(states().values()) == {"excluded"}
    assert len(states()) == 6


@pytest.mark.parametrize(
    ("changes", "shown"),
    [
        ({"networks": ("Socket",), "kinds": ("sockets",), "with_gdr": 0}, "sockets instead of RDMA"),
        ({"adapters": ("mlx5_0:1",)}, "one network adapter"),
        ({"adapters": ("mlx5_0:1", "mlx5_0:2")}, "one network adapter"),
        ({"without_gdr": 32, "with_gdr": 0}, "no GPUDirect RDMA"),
        ({"shared_memory": 28, "peer_to_peer": 0}, "host memory instead of NVLink"),
        ({"slow_ranks": ((3, 0.12),), "removable": 0.1}, "slow ranks"),
        ({"slow_nodes": (("n1", 0.08),), "removable": 0.07}, "slow ranks"),
    ],
)
def test_what_the_run_shows_comes_first_and_says_how(changes: dict[str, object], shown: str) -> None:
    causes = compare(POINT, SLOW, msgspec.structs.replace(HEALTHY, **changes)).causes
    assert (causes[0].name, causes[0].state) == (shown, "shown")
    assert causes[0].evidence and causes[0].fix
    assert all(cause.state != "shown" for cause in causes[1:])


def test_what_is_unknown_is_possible_and_never_shown_and_what_costs_nothing_explains_nothing() -> None:
    assert {cause.state for cause in compare(POINT, SLOW).causes} == {"possible"}
    assert states(adapters=("mlx5_0:1",), planned_adapters=None)["one network adapter"] == "possible"
    assert states(slow_ranks=((3, 0.03),), removable=0.001)["slow ranks"] == "excluded"


def test_one_node_has_no_network_between_nodes_to_blame() -> None:
    one_node = expected(8, 8, 256, 2400.0, INPUTS)
    names = {cause.name for cause in compare(one_node, Estimate(1.0, 0.9, 1.1), HEALTHY).causes}
    assert names == {"host memory instead of NVLink", "slow ranks", "input pipeline"}
    one_gpu = expected(1, 8, 256, 2400.0, INPUTS)
    assert [cause.name for cause in compare(one_gpu, Estimate(1.0, 0.9, 1.1), HEALTHY).causes] == ["input pipeline"]


def test_a_range_that_published_figures_have_not_confirmed_alarms_of_nothing() -> None:
    """None of equal batch is published of H100 and newer, and of PCIe on several nodes only those that were fitted."""
    for gpu, nodes in (
        ("H100 SXM", 2),
        ("GH200", 1),
        ("H200", 2),
        ("B200", 8),
        ("A100-PCIE", 2),
        ("A100-SXM4", 1),
        ("X", 2),
    ):
        assert KNOWN.no_alarm(f"NVIDIA {gpu}", nodes).startswith("no alarm: "), gpu
    for gpu, nodes in (("A100-SXM4", 2), ("L40S", 1)):
        assert KNOWN.no_alarm(f"NVIDIA {gpu}", nodes) == ""
    silent = msgspec.structs.replace(POINT, no_alarm=KNOWN.no_alarm("NVIDIA H200", 2))
    low = POINT.images_per_s.low
    made = compare(silent, Estimate(0.8 * low, 0.79 * low, 0.81 * low))
    assert (made.state, made.causes) == ("cannot tell", ())
    assert "no alarm: on several nodes of such GPUs the range held for 0 of 0 published pairs" in made.why


def test_a_published_rate_holds_for_its_precision() -> None:
    sources = [KNOWN.rate("NVIDIA A100-SXM4", "resnet50", each) for each in ("amp-fp16", "amp-bf16", "fp32")]
    assert [each and each.source.partition(":")[0] for each in sources] == [
        "NVIDIA's published DGX A100",
        "assumed",
        None,
    ]
