"""A box and a private engine leave the host as it was: while they run, and after."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import tempfile
from pathlib import Path

import pytest

from runner import box
from runner.images import engine
from tests.support import host_state

pytestmark = pytest.mark.integration


def test_box_and_private_engine_leave_the_host_as_it_was() -> None:
    state = Path(tempfile.mkdtemp(prefix="engine-"))
    name = f"untouched-{os.getpid()}"
    before, daemons_before = host_state.observe(), host_state.daemons()
    try:
        here = box.up(box.BoxSpec(name=name))
        engine.start_private(state)
        ran = subprocess.run(
            [here.bin_dir / "srun", "--nodes=2", "hostname"], capture_output=True, text=True, timeout=60, check=False
        )
        during, daemons_during = host_state.observe(), host_state.daemons()
    finally:
        box.down(name)
        engine.remove_private(state)
    after, daemons_after = host_state.observe(), host_state.daemons()

    assert sorted(ran.stdout.split()) == ["dgx01", "dgx02"], ran.stderr
    assert any("slurmctld" in line for line in daemons_during - daemons_before), "the test must see what it looks for"
    assert any("dockerd" in line for line in daemons_during - daemons_before)
    # An engine keeps its containers' cgroups where the kernel has them, below one name, while it runs.
    assert _differences(before, dataclasses.replace(during, cgroups=before.cgroups)) == {}
    # Private engines share that name, and the first to end takes it away where nothing runs below it.
    assert after.cgroups <= before.cgroups
    assert _differences(before, dataclasses.replace(after, cgroups=before.cgroups)) == {}
    assert daemons_after == daemons_before
    assert not state.exists()


def test_the_view_would_show_a_listener() -> None:
    import socket

    before = host_state.observe()
    with socket.create_server(("127.0.0.1", 0)) as server:
        shown = host_state.observe().listeners - before.listeners
        assert [line.endswith(f":{server.getsockname()[1]:04X}") for line in shown] == [True]


def _differences(one: host_state.HostState, other: host_state.HostState) -> dict[str, object]:
    return {
        field.name: (getattr(one, field.name), getattr(other, field.name))
        if isinstance(getattr(one, field.name), tuple)
        else getattr(one, field.name) ^ getattr(other, field.name)
        for field in dataclasses.fields(one)
        if getattr(one, field.name) != getattr(other, field.name)
    }
