"""The alarm: only a whole interval below the range, with the causes that the run's own records show."""

from __future__ import annotations

import msgspec
import pytest

from runner.expectation.alarm import compare
from runner.model.expectation import Signs
from runner.model.study import Estimate
from tests.support.expectations import a100_cluster, exact, expected, with_inputs

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
