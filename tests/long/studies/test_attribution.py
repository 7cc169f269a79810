"""Planted losses, for real: ranks that sleep, on this machine and over a slow or delayed link, land in their rows."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from runner.model.study import LaunchFacts, Loss
from runner.statistics import loss
from tests.support.commands import Runner
from tests.support.timed import launched
from tests.support.timed_networks import TimedNetworks, timed_networks

pytestmark = pytest.mark.integration
REPEATS = (1, 2, 3)
STEP = {"compute_seconds": 0.04, "window_seconds": 0.8}


@pytest.fixture
def local(tmp_path: Path) -> Runner:
    return Runner(Path("local"), tmp_path / "runs", tmp_path / "state", tmp_path)


def share(made: Loss, *rows: str) -> float:
    """Of the whole loss, in these rows; all rows and the efficiency add up to 1."""
    assert made.efficiency is not None, made.why
    values = {row.name: row.loss.value for row in made.rows}
    whole = math.fsum(values.values())
    assert whole + made.efficiency.value == pytest.approx(1.0)
    assert whole > 0.1, "the planted loss is there"
    return math.fsum(values[row] for row in rows) / whole


@pytest.mark.parametrize(
    ("gpus", "solo_ranks", "planted", "row"),
    [
        (2, (0, 1), {"slow_rank": 1, "slow_factor": 1.5}, loss.WAITING),
        (4, (0, 2), {"slow_node": 1, "ranks_per_node": 2, "slow_factor": 1.5}, loss.WAITING),
        (4, (0,), {"jitter": 0.4, "compute_seconds": 0.02, "window_seconds": 2.4}, loss.WAITING),
        (3, (0,), {"input_seconds": 0.01}, loss.NODE),
        (2, (0,), {"shared_factor": 1.5}, loss.NODE),
        (2, (0,), {"hooks_seconds": 0.02}, loss.HOOKS),
        (2, (0,), {"coordination_seconds": 0.02}, loss.COORDINATION),
        (2, (0,), {"overlap_factor": 1.5}, loss.OVERLAP),
        (4, (0,), {"communication_seconds": 0.02}, loss.EXPOSED),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else None,
)
def test_a_planted_loss_lands_in_its_row(
    local: Runner, gpus: int, solo_ranks: tuple[int, ...], planted: dict[str, object], row: str
) -> None:
    made: list[LaunchFacts] = []
    for repeat in REPEATS:
        step = STEP | planted
        made += [launched(local, "solo", 1, repeat, solo_rank=rank, **step) for rank in solo_ranks]
        if row == loss.HOOKS:
            made.append(launched(local, "solo-hooks", 1, repeat, **step))
        made.append(launched(local, "full", gpus, repeat, **step))
    attributed = loss.attribution(gpus, (), made, "one-allocation")
    print({each.name: round(each.loss.value, 3) for each in attributed.rows})
    assert share(attributed, row) >= 0.8


@pytest.fixture(scope="module")
def networks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TimedNetworks]:
    if os.geteuid() != 0:
        pytest.skip("network namespaces need root")
    with timed_networks(tmp_path_factory.mktemp("networks")) as made:
        yield made


@pytest.mark.parametrize("link", ["slow", "delayed"])
def test_a_bad_link_between_two_nodes_is_communication(networks: TimedNetworks, link: str) -> None:
    """A link of 20 Mbit/s slows what is large. One that delays is felt by the negotiation, too, which comes first."""
    options = ("--compute-seconds", "0.04", "--window-seconds", "0.8")
    payload = ("--payload-bytes", "30000") if link == "slow" else ()
    made: list[LaunchFacts] = []
    for repeat in REPEATS:
        made.append(networks.launched(1, repeat, "", *options))
        made.append(networks.launched(2, repeat, link, *options, *payload))
    attributed = loss.attribution(2, (), made, "one-allocation")
    print({each.name: round(each.loss.value, 3) for each in attributed.rows})
    rows = (loss.EXPOSED,) if link == "slow" else (loss.COORDINATION, loss.EXPOSED)
    assert share(attributed, *rows) >= 0.8
