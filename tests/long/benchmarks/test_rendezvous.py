"""The rendezvous at scale: ours, and Horovod's own server beside it in the same job, through the real command line.

``make bench-rendezvous`` prints the table; it belongs in docs/proofs.md. Clients and server share this machine.
"""

from typing import Any

import pytest

from tests.support.commands import Runner
from tests.support.recipes import complete, meshes, over_a_bad_road

pytestmark = pytest.mark.integration
SIZES = (16, 64, 128, 256, 512)
STOCK_SIZES = (16, 64, 128)
STOCK_LIMIT_S = 120
ALLOWED_S = {256: 20.0}  # what 256 clients may take on two cores


def test_how_long_a_mesh_takes_through_ours_and_through_horovods(runner: Runner) -> None:
    ours = meshes(runner, "--clients", ",".join(map(str, SIZES)))
    stock = meshes(runner, "--clients", "", "--stock", ",".join(map(str, STOCK_SIZES)), "--timeout", str(STOCK_LIMIT_S))
    beside = {each["clients"]: each for each in stock}
    print("\n| clients | ours s | stock s | ratio | requests | lost | server's peak MB | server's CPU s |")
    print("|---|---|---|---|---|---|---|---|")
    for each in ours:
        print(row(each, beside.get(each["clients"])))
    assert all(complete(each) for each in ours)
    assert all(each["mesh_s"] < ALLOWED_S.get(each["clients"], float("inf")) for each in ours)


def row(ours: dict[str, Any], stock: dict[str, Any] | None) -> str:
    """One row of the table; a mesh that did not form in its time is said to have not."""
    lost = ours["requests"] - ours["requests_answered"]
    if stock is None:
        theirs, ratio = "not tried", ""
    elif stock["failed"]:
        theirs, ratio = f"{stock['failed']} clients failed", ""
    else:
        theirs, ratio = f"{stock['mesh_s']:.1f}", f"{stock['mesh_s'] / ours['mesh_s']:.0f}"
    return (
        f"| {ours['clients']} | {ours['mesh_s']:.1f} | {theirs} | {ratio} | {ours['requests']} | {lost} "
        f"| {ours['server_peak_bytes'] / 1e6:.0f} | {ours['server_cpu_s']:.1f} |"
    )


@pytest.mark.parametrize(("clients", "loss"), [(64, 0.01), (64, 0.05)])
def test_a_mesh_forms_over_a_bad_road(clients: int, loss: float) -> None:
    mesh = over_a_bad_road(clients, loss=loss, delay_ms=20)
    print(f"\n{clients} clients, {loss:.0%} of packets lost, 20 ms each way: {mesh['mesh_s']:.1f} s")
    assert complete(mesh), mesh
