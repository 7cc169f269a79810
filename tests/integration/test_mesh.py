"""Many ranks meet: Horovod's clients, in a job through the real command line, and over a road that loses packets."""

from __future__ import annotations

import pytest

from tests.support.commands import Runner
from tests.support.meshes import complete, meshes, over_a_bad_road

pytestmark = pytest.mark.integration


def test_128_clients_form_their_mesh_in_a_job(runner: Runner) -> None:
    (told,) = meshes(runner, "--clients", "128")
    assert complete(told), told
    assert (told["clients"], told["tasks"]) == (128, 16)
    assert told["requests"] > 2.4 * 128**2


def test_a_mesh_forms_though_packets_are_lost_and_late() -> None:
    told = over_a_bad_road(16, loss=0.01, delay_ms=20)
    assert complete(told), told
    assert told["mesh_s"] > 2, "the road was as bad as it was to be: about 40 round trips of 40 ms, one after the other"
